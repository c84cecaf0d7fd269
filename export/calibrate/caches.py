"""Choose the scales of a quantized key-value cache by the largest keys and values of sample texts.

The scale of a channel, or of a layer, provides for the largest magnitude that was seen there, and a margin. Rotary
embeddings rotate pairs of key channels further as positions grow, beyond what any sample reaches; they keep the length
of the pair, so rotated channels provide for that.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.lower import GraphJob
from edgeformer.export.reference.quantized_caches import CacheEntrance, Rotation
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.cache_scales import LARGEST, CacheScales, Scales
from edgeformer.manifest.parts import QuantizedCache
from edgeformer.models.model_spec import ModelSpec

MARGIN = 1.25
"""Factor on the largest magnitude seen, for other texts: clipping loses all of a value's excess, wider steps little."""

TEXTS, TOKENS, SEED = 4, 64, 7
"""Number of random texts, tokens in each, and the seed of the generator that draws them."""


def calibrate_caches(job: GraphJob, bos: int | None = None, texts: Sequence[NDArray[np.int64]] = ()) -> CacheScales:
    """Return the scales of a decoder's keys and values as its plan stores them, from random tokens and `texts`.

    texts: token ids int64 [n] each, cut to the context. bos: the first token of half of the random texts, because in
    many models its keys are unlike those of other tokens. Raises ExportError for keys or values that are not finite.
    """
    model_spec, precision = job.model_spec, job.plan.quantized_cache
    kept = model_spec.cache.key_value
    assert precision is not None and kept is not None and model_spec.cache.is_uniform, "others are refused before"
    ranges = _Ranges(kept.head_dim)
    reference = Reference(model_spec, job.weights, torch.float32, ranges)
    for ids in _batches(model_spec, bos, texts):
        reference.run(ids)
        ranges.check_layers(model_spec.cache.num_layers)
    return CacheScales(
        key=_scales("keys", ranges.keys, precision),
        value=_scales("values", ranges.values, precision),
        precision=precision,
    )


def _batches(model_spec: ModelSpec, bos: int | None, texts: Sequence[NDArray[np.int64]]) -> list[Tensor]:
    """Return token ids int64 [B, S] of the texts that are run together."""
    shape = TEXTS, min(TOKENS, model_spec.context_length)
    ids = np.random.default_rng(SEED).integers(0, model_spec.vocab_size, shape)
    if bos is not None and bos < model_spec.vocab_size:
        ids[::2, 0] = bos
    cut = (text[: model_spec.context_length].astype(np.int64)[None] for text in texts)
    return [torch.from_numpy(each) for each in (ids, *cut)]


class _Ranges(CacheEntrance):
    """Observes the largest magnitude of each channel [K·D] of the keys and values, by layer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self._head_dim = head_dim
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def store(self, layer: int, key: Tensor, value: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        heads = key.unflatten(-1, (-1, self._head_dim))
        bound = (heads if rotation is None else _pair_lengths(heads, *rotation)).flatten(-2)
        for largest, seen in ((self.keys, bound), (self.values, value)):
            new = seen.abs().flatten(0, 1).amax(0)
            largest[layer] = torch.maximum(largest.get(layer, new), new)
        return key, value


def _pair_lengths(heads: Tensor, pairs: int, interleaved: bool) -> Tensor:
    """Return heads [..., D] with each rotated channel replaced by the length of its pair."""
    shape = (pairs, 2) if interleaved else (2, pairs)
    rotated = heads[..., : 2 * pairs].unflatten(-1, shape)
    lengths = rotated.norm(dim=-1 if interleaved else -2, keepdim=True).expand_as(rotated).flatten(-2)
    return torch.cat((lengths, heads[..., 2 * pairs :]), -1)


def _scales(what: str, largest: dict[int, Tensor], precision: QuantizedCache) -> Scales:
    """Return the scales of each layer, to four digits: the sample does not determine more."""
    scales = []
    for layer in sorted(largest):
        bound = largest[layer] * MARGIN
        if not bound.isfinite().all():
            raise ExportError(f"{what} of layer {layer} are not finite, and an {precision} cache cannot hold them.")
        if precision == "fp8":  # whose relative errors need no scale for every channel
            bound = bound.amax(keepdim=True)
        # A channel that is zero for every token may have any scale.
        steps = torch.where(bound == 0, 1.0, bound / LARGEST[precision])
        scales.append(tuple(float(f"{step:.4g}") for step in steps.tolist()))
    return tuple(scales)
