"""Run bundles with onnxruntime, without torch or onnx.

    from edgeformer.runtime import load_causal_lm
    model = load_causal_lm("tiny-llama")
    for text in model.stream("Once upon a time", max_new_tokens=64):
        print(text, end="")

`load` opens any bundle; `load_causal_lm`, `load_seq2seq` and `load_encoder` tell a type checker which model it is.
`edgeformer.runtime.evaluation` scores bundles. `benchmark` and `optimize` are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from edgeformer.errors import BundleError, EdgeformerError, RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.cross_encoder import Ranked
from edgeformer.runtime.cuda_options import CudaOptions
from edgeformer.runtime.encoder import Encoder
from edgeformer.runtime.engine import Engine, EngineBusyError, EngineStatistics, EngineStream
from edgeformer.runtime.generate import FinishReason, Generation, GenerationStream, TokenEvent
from edgeformer.runtime.generation_config import GenerationConfig, GenerationOptions
from edgeformer.runtime.kernel_report import KernelReport
from edgeformer.runtime.labels import Class, Filling
from edgeformer.runtime.loading import load, load_causal_lm, load_encoder, load_seq2seq
from edgeformer.runtime.logits_processors import LogitsProcessor
from edgeformer.runtime.question_answering import Answer
from edgeformer.runtime.seq2seq import Seq2SeqLM
from edgeformer.runtime.speculation import SpeculationStatistics
from edgeformer.runtime.speech import Segment, SpeechConfig, Transcript, Word
from edgeformer.runtime.token_logprobs import TokenLogprobs
from edgeformer.runtime.token_spans import Span
from edgeformer.runtime.tokenizer import Message

if TYPE_CHECKING:
    from edgeformer.runtime.benchmarking import BenchmarkResult, benchmark
    from edgeformer.runtime.prepack import optimize

__all__ = [
    "Answer",
    "BenchmarkResult",
    "BundleError",
    "CausalLM",
    "Class",
    "CudaOptions",
    "EdgeformerError",
    "Encoder",
    "Engine",
    "EngineBusyError",
    "EngineStatistics",
    "EngineStream",
    "Filling",
    "FinishReason",
    "Generation",
    "GenerationConfig",
    "GenerationOptions",
    "GenerationStream",
    "KernelReport",
    "LogitsProcessor",
    "Manifest",
    "Message",
    "Ranked",
    "RequestError",
    "Segment",
    "Seq2SeqLM",
    "Span",
    "SpeculationStatistics",
    "SpeechConfig",
    "TokenEvent",
    "TokenLogprobs",
    "Transcript",
    "Word",
    "benchmark",
    "load",
    "load_causal_lm",
    "load_encoder",
    "load_seq2seq",
    "optimize",
]

_LAZY = {
    "BenchmarkResult": "edgeformer.runtime.benchmarking",
    "benchmark": "edgeformer.runtime.benchmarking",
    "optimize": "edgeformer.runtime.prepack",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
