"""Run bundles with onnxruntime: no torch, no onnx.

from edgeformer.runtime import load
model = load("tiny-llama")
for text in model.stream("Once upon a time", max_new_tokens=64):
    print(text, end="")
"""

from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.encoder import Encoder
from edgeformer.runtime.generate import Generation
from edgeformer.runtime.loading import load
from edgeformer.runtime.sampling import Sampling
from edgeformer.runtime.seq2seq import Seq2SeqLM

__all__ = ["CausalLM", "Encoder", "Generation", "Sampling", "Seq2SeqLM", "load"]
