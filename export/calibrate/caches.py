"""How large keys and values get: the scales of an int8 cache, from eager PyTorch reading sample texts.

A scale is as large as the largest number that was seen in its channel needs, and a margin more. Rotation moves numbers
between the two channels of a pair as the position grows, further than any sample reaches; what it leaves as it is is
the length of the pair, so that is what a rotated channel provides for.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.cache_scales import CacheScales
from edgeformer.errors import ExportError
from edgeformer.export.reference.quantized_caches import CacheEntrance, Turn
from edgeformer.export.reference.reference import Reference
from edgeformer.model_spec import ModelSpec

MARGIN = 1.25
"""Room for what samples do not show: a number that is clipped loses all of its excess, one in wider steps little."""

TEXTS, TOKENS = 4, 64
"""Random texts, and their tokens."""
SEED = 7


def calibrate_caches(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    bos: int | None = None,
    texts: Sequence[NDArray[np.int64]] = (),
) -> CacheScales:
    """The scales of a decoder's keys and values.

    They are measured on random tokens, half of them behind `bos`, whose keys are unlike any other token's in many
    models, and on texts: token ids [n] each, cut to the context. Raises ExportError where keys or values are no finite
    numbers.
    """
    ranges = _Ranges(model_spec.cache.head_dim)
    reference = Reference(model_spec, weights, torch.float32, ranges)
    for ids in _batches(model_spec, bos, texts):
        reference.run(ids)
        ranges.check_layers(model_spec.cache.num_layers)
    return CacheScales(key=_scales("keys", ranges.keys), value=_scales("values", ranges.values))


def _batches(model_spec: ModelSpec, bos: int | None, texts: Sequence[NDArray[np.int64]]) -> list[Tensor]:
    """Token ids int64 [B, S] of texts that are run together."""
    shape = TEXTS, min(TOKENS, model_spec.context_length)
    ids = np.random.default_rng(SEED).integers(0, model_spec.vocab_size, shape)
    if bos is not None and bos < model_spec.vocab_size:
        ids[::2, 0] = bos
    cut = (text[: model_spec.context_length].astype(np.int64)[None] for text in texts)
    return [torch.from_numpy(each) for each in (ids, *cut)]


class _Ranges(CacheEntrance):
    """Notes the largest magnitude of each channel [K·D], layer by layer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self._head_dim = head_dim
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def store(self, layer: int, key: Tensor, value: Tensor, turn: Turn | None) -> tuple[Tensor, Tensor]:
        reach = key if turn is None else _lengths_of_pairs(key.unflatten(-1, (-1, self._head_dim)), *turn).flatten(-2)
        for largest, numbers in ((self.keys, reach), (self.values, value)):
            new = numbers.abs().flatten(0, 1).amax(0)
            largest[layer] = torch.maximum(largest.get(layer, new), new)
        return key, value


def _lengths_of_pairs(heads: Tensor, pairs: int, interleaved: bool) -> Tensor:
    """heads [..., D] with the length of its pair in the place of each number that is turned."""
    shape = (pairs, 2) if interleaved else (2, pairs)
    turning = heads[..., : 2 * pairs].unflatten(-1, shape)
    lengths = turning.norm(dim=-1 if interleaved else -2, keepdim=True).expand_as(turning).flatten(-2)
    return torch.cat((lengths, heads[..., 2 * pairs :]), -1)


def _scales(what: str, largest: dict[int, Tensor]) -> tuple[tuple[float, ...], ...]:
    """Scales of each layer, of four digits: more would mean nothing."""
    scales = []
    for layer in sorted(largest):
        reach = largest[layer] * MARGIN
        if not bool(reach.isfinite().all()):
            raise ExportError(f"{what} of layer {layer} are no finite numbers, which an int8 cache cannot hold.")
        # A channel that is zero for every token has nothing to lose.
        steps = torch.where(reach == 0, 1.0, reach / 127)
        scales.append(tuple(float(f"{step:.4g}") for step in steps.tolist()))
    return tuple(scales)
