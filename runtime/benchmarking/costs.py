"""What a token must cost, from the manifest alone: matrix products, and bytes of weights and cache that they read.

Weights are counted as a session holds them: the bytes of their file (twice those of bf16, which are float32 once they
are loaded), times the part of the parameters that are factors of products. The rest is gathered, a row a token (an
embedding table that is not the head too), or small (norms, biases). That is right where all weights are stored alike. A
view for prompts has its factors in a file of its own, but for the head, which is read once, and what is behind its last
attention is done for the last token of a chunk alone. Activations are not
counted, nor what an implementation reads or copies beyond what it must.
"""

from collections.abc import Sequence
from statistics import fmean

from edgeformer.accounting import account, cache_element_bytes, last_token_flops
from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig, Seq2SeqConfig
from edgeformer.manifest import Manifest
from edgeformer.runtime.benchmarking.result import Cost
from edgeformer.runtime.decoder import PREFILL_CHUNK


class Costs:
    """Of one bundle; None of each phase where the model is not ours, so that the manifest does not know its parts."""

    def __init__(self, manifest: Manifest):
        self._model = manifest.model
        self._element_bytes = cache_element_bytes(manifest)
        self._file_bytes = _weights_bytes(manifest, manifest.graph)
        self._view = manifest.prefill
        self._view_bytes = 0 if self._view is None else _weights_bytes(manifest, self._view.graph)

    def prefill(self, tokens: int, batch_size: int) -> Cost | None:
        """One token of a prompt, of a source, or of a text."""
        match self._model:
            case DecoderConfig() as config:
                return self._prompt(config, tokens)
            case Seq2SeqConfig() as config:
                source = account(config).source
                assert source is not None
                flops, attention = source.flops_per_token, source.attention_flops_per_token
                return self._texts(config, flops, attention, tokens, batch_size)
            case EncoderConfig() as config:
                own = account(config)
                return self._texts(config, own.flops_per_token, own.attention_flops_per_token, tokens, batch_size)
            case _:
                return None

    def decode(self, tokens: int, batch_size: int, new_tokens: int) -> Cost | None:
        """One new token, in the middle of decoding: every row's cache is read, the weights once for all rows."""
        length = tokens + new_tokens // 2
        match self._model:
            case DecoderConfig() as config:
                weights = self._read(config, account(config).flops_per_token)
                flops = account(config).flops_per_token + _attention(config, [length])
                return Cost(flops=flops, bytes=weights / batch_size + self._cache(config, length))
            case Seq2SeqConfig(decoder=config):
                own = account(self._model)
                geometry = config.cross_geometry
                assert own.source is not None and geometry is not None
                written = 1 + new_tokens // 2
                flops = own.flops_per_token + _attention(config, [written]) + own.source.step_flops_per_token * tokens
                weights = self._read(self._model, own.flops_per_token)
                cache = self._cache(config, written) + geometry.elements(1, tokens) * self._element_bytes
                return Cost(flops=flops, bytes=weights / batch_size + cache)
            case _:
                return None

    def _prompt(self, config: DecoderConfig, tokens: int) -> Cost:
        """Rows are read one by one, chunk by chunk, and every chunk reads the weights and what is cached."""
        ends = [min(end, tokens) for end in range(PREFILL_CHUNK, tokens + PREFILL_CHUNK, PREFILL_CHUNK)]
        own = account(config)
        weights, products = self._read(config, own.flops_per_token) * len(ends), float(own.flops_per_token)
        if self._view is not None and tokens >= self._view.from_tokens:
            weights = self._view_bytes * len(ends)
            products -= last_token_flops(config) * (1 - len(ends) / tokens)
        cache = sum(self._cache(config, end) for end in ends)
        flops = products + _attention(config, range(1, tokens + 1))
        return Cost(flops=flops, bytes=(weights + cache) / tokens)

    def _texts(self, config: ModelConfig, flops: int, attention: int, tokens: int, batch_size: int) -> Cost:
        """A batch in one run, where every token sees all of its text."""
        return Cost(flops=flops + attention * tokens, bytes=self._read(config, flops) / (batch_size * tokens))

    def _read(self, config: ModelConfig, flops_per_token: int) -> float:
        """Bytes of the weights that a token is multiplied with; each takes two operations."""
        return self._file_bytes * min(1.0, flops_per_token / 2 / account(config).parameters)

    def _cache(self, config: DecoderConfig, length: int) -> int:
        return config.cache_geometry.elements(1, length, config.windows) * self._element_bytes


def _attention(config: DecoderConfig, lengths: Sequence[int]) -> float:
    """Operations of attention to that many tokens, the mean over `lengths` of what layers see through their windows."""
    seen = fmean(min(window or length, length) for window in config.windows for length in lengths)
    return account(config).attention_flops_per_token * seen


def _weights_bytes(manifest: Manifest, graph: str) -> int:
    """What the weights in a graph's file take in memory."""
    own = f"{graph}_data"
    if own not in manifest.files:
        own = next(name for name in manifest.files if name.endswith(".onnx_data"))
    return manifest.files[own].bytes * (2 if manifest.precision == "bf16" else 1)
