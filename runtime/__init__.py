"""Run bundles with onnxruntime, without torch or onnx.

    from edgeformer.runtime import load_causal_lm
    model = load_causal_lm("tiny-llama")
    for text in model.stream("Once upon a time", max_new_tokens=64):
        print(text, end="")

`load` opens any bundle; `load_causal_lm`, `load_seq2seq`, `load_encoder`, `load_vision_encoder`,
`load_dual_encoder`, `load_picture_encoder` and `load_picture_text` tell a type checker which model it is.
`edgeformer.runtime.measure.evaluation` scores bundles. `benchmark` and `optimize` are imported when they are first
used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from edgeformer.errors import BundleError, EdgeformerError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.engine import Engine, EngineBusyError, EngineStatistics, EngineStream, OfflineEngine
from edgeformer.runtime.generation.generation_config import GenerationConfig, GenerationOptions
from edgeformer.runtime.generation.row import FinishReason, Generation, TokenEvent
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.generation.sampling.token_logprobs import TokenLogprobs
from edgeformer.runtime.generation.scheduling import GenerationStream
from edgeformer.runtime.generation.speculation import SpeculationStatistics
from edgeformer.runtime.media.pictures.picture_files import LowDetail
from edgeformer.runtime.sessions.kernel_report import KernelReport
from edgeformer.runtime.sessions.providers.cuda_options import CudaOptions
from edgeformer.runtime.sessions.providers.webgpu_options import WebGpuOptions
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.encoders.cross_encoder import Ranked
from edgeformer.runtime.tasks.encoders.embeddings.forms import Embedding, SparseVector
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.encoders.question_answering import Answer
from edgeformer.runtime.tasks.encoders.token_spans import Span
from edgeformer.runtime.tasks.labels import Class, Filling
from edgeformer.runtime.tasks.loading import (
    load,
    load_causal_lm,
    load_dual_encoder,
    load_encoder,
    load_picture_encoder,
    load_picture_text,
    load_seq2seq,
    load_sound_text,
    load_vision_encoder,
)
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM
from edgeformer.runtime.tasks.sound_text import SoundTextLM
from edgeformer.runtime.tasks.speech import Segment, SpeechConfig, Transcript, Word
from edgeformer.runtime.tasks.vision.dual_encoder import DualEncoder, RankedPicture
from edgeformer.runtime.tasks.vision.picture_encoder import PictureEncoder
from edgeformer.runtime.tasks.vision.picture_text import PictureTextLM
from edgeformer.runtime.tasks.vision.vision_encoder import VisionEncoder
from edgeformer.runtime.text.tokenizer import Message

if TYPE_CHECKING:
    from edgeformer.runtime.measure.benchmarking import BenchmarkResult, benchmark
    from edgeformer.runtime.measure.prepack import optimize

__all__ = [
    "Answer",
    "BenchmarkResult",
    "BundleError",
    "CausalLM",
    "Class",
    "CudaOptions",
    "DualEncoder",
    "EdgeformerError",
    "Embedding",
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
    "LowDetail",
    "Manifest",
    "Message",
    "OfflineEngine",
    "PictureEncoder",
    "PictureTextLM",
    "Ranked",
    "RankedPicture",
    "RequestError",
    "Segment",
    "Seq2SeqLM",
    "SoundTextLM",
    "Span",
    "SparseVector",
    "SpeculationStatistics",
    "SpeechConfig",
    "TokenEvent",
    "TokenLogprobs",
    "Transcript",
    "VisionEncoder",
    "WebGpuOptions",
    "Word",
    "benchmark",
    "load",
    "load_causal_lm",
    "load_dual_encoder",
    "load_encoder",
    "load_picture_encoder",
    "load_picture_text",
    "load_seq2seq",
    "load_sound_text",
    "load_vision_encoder",
    "optimize",
]

_LAZY = {
    "BenchmarkResult": "edgeformer.runtime.measure.benchmarking",
    "benchmark": "edgeformer.runtime.measure.benchmarking",
    "optimize": "edgeformer.runtime.measure.prepack",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
