"""Compute what a token must cost, from the manifest: FLOPs of matrix products, and bytes of weights and cache read.

Weights count as a session holds them: the bytes of their file (twice those of bf16, which are widened to float32 when
they are loaded), times the fraction of the parameters that are factors of products. The other parameters are gathered,
one row per token (an embedding table that is not also the head), or small (norms, biases). This is exact where all
weights are stored in one format. Integers of 6 bits that a file keeps as bytes count as these, of which our kernels
read three quarters. A decode graph that can return the logits of the last token alone runs what follows
its last attention for the last token of a chunk only. Activations are not counted, nor reads and copies of an
implementation beyond the minimum.
"""

from collections.abc import Sequence
from statistics import fmean

from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig, PictureTower, StackConfig
from edgeformer.manifest.accounting import account, cache_element_bytes, last_token_flops
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.measure.benchmarking.result import Cost
from edgeformer.runtime.steps.memory import PREFILL_CHUNK


class Costs:
    """The costs of one bundle; None for a user's own module, of which the manifest does not know the parts.

    last_logits: whether runs of prompts over the decode graph compute the logits of their last token alone.
    """

    def __init__(self, manifest: Manifest, last_logits: bool = False):
        self._last_logits = last_logits
        self._model = manifest.model
        self._element_bytes, self._has_scales = cache_element_bytes(manifest), manifest.has_scales_per_token
        self._file_bytes = _weights_bytes(manifest, manifest.graph)

    def prefill(self, tokens: int, batch_size: int) -> Cost | None:
        """Return the cost of one token of a prompt, of a source, or of an encoder's text."""
        if self._model is None:
            return None
        if self._model.input_stack.cache_geometry.num_layers:
            return self._prompt(self._model, tokens)
        own = account(self._model)
        texts = own if own.source is None else own.source
        return self._texts(self._model, texts.flops_per_token, texts.attention_flops_per_token, tokens, batch_size)

    def decode(self, tokens: int, batch_size: int, new_tokens: int) -> Cost | None:
        """Return the cost of one new token halfway through decoding; rows share one read of the weights."""
        if self._model is None or not self._model.output_stack.cache_geometry.num_layers:
            return None
        own, stack = account(self._model), self._model.output_stack
        geometry = stack.cross_geometry
        length = (tokens if geometry is None else 1) + new_tokens // 2
        flops = own.flops_per_token + _attention(stack, [length])
        cache = self._cache(stack, length)
        if own.source is not None and geometry is not None:
            flops += own.source.step_flops_per_token * tokens
            cache += geometry.elements(1, tokens) * self._element_bytes.tokens
        return Cost(flops=flops, bytes=self._read(self._model, own.flops_per_token) / batch_size + cache)

    def _prompt(self, model: ModelConfig, tokens: int) -> Cost:
        """Return the cost of one token of a prompt; rows run one by one, and each chunk reads weights and cache."""
        ends = [min(end, tokens) for end in range(PREFILL_CHUNK, tokens + PREFILL_CHUNK, PREFILL_CHUNK)]
        own, config = account(model), model.output_stack
        weights, products = self._read(model, own.flops_per_token) * len(ends), float(own.flops_per_token)
        if self._last_logits:
            products -= last_token_flops(config) * (1 - len(ends) / tokens)
        cache = sum(self._cache(config, end) for end in ends)
        flops = products + _attention(config, range(1, tokens + 1))
        return Cost(flops=flops, bytes=(weights + cache) / tokens)

    def _texts(self, config: ModelConfig, flops: int, attention: int, tokens: int, batch_size: int) -> Cost:
        """Return the cost of one token of a batch in one run, where every token attends to its whole text."""
        return Cost(flops=flops + attention * tokens, bytes=self._read(config, flops) / (batch_size * tokens))

    def _read(self, config: ModelConfig, flops_per_token: int) -> float:
        """Return the bytes of the weights that a token is multiplied with; each weight takes two operations."""
        return self._file_bytes * min(1.0, flops_per_token / 2 / account(config).parameters)

    def _cache(self, config: StackConfig, length: int) -> int:
        geometry = config.cache_geometry.with_scales_per_token() if self._has_scales else config.cache_geometry
        return geometry.size_in_bytes(self._element_bytes, 1, length, config.cache_windows)


def _attention(config: DecoderConfig | EncoderConfig | PictureTower, lengths: Sequence[int]) -> float:
    """Return the FLOPs of attention per token, a mean over past `lengths`, each limited to the layer's window."""
    seen = fmean(min(window or length, length) for window in config.windows for length in lengths)
    return account(config).attention_flops_per_token * seen


def _weights_bytes(manifest: Manifest, graph: str) -> int:
    """Return the bytes of memory of the weights in a graph's file."""
    own = f"{graph}_data"
    if own not in manifest.files:
        own = next(name for name in manifest.files if name.endswith(".onnx_data"))
    widened = manifest.plan.precision == "bf16" and manifest.plan.arithmetic == "fp32"
    return manifest.files[own].bytes * (2 if widened else 1)
