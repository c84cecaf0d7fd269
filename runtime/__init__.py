"""Run bundles with onnxruntime: no torch, no onnx.

from edgeformer.runtime import load
model = load("tiny-llama")
for text in model.stream("Once upon a time", max_new_tokens=64):
    print(text, end="")
"""

from edgeformer.runtime.causal_lm import CausalLM, load
from edgeformer.runtime.generate import Generation
from edgeformer.runtime.sampling import Sampling

__all__ = ["CausalLM", "Generation", "Sampling", "load"]
