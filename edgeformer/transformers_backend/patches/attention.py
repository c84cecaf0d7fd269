"""Replace attention and rotary embeddings of transformers by our ops, for one forward pass.

    rotary module ──cos, sin──→ apply_rotary_*(q, k, cos, sin) ──→ cache.update(k, v) ──→ attention(q, k, v, mask)
      rows of our tables          ops.rotary_embedding               which layer it is      ops.group_query_attention

`AttentionPatch` is the context of the pass: the past of every layer goes in, the present comes out. Cosines, sines and
masks travel through code of transformers, and are recognized by identity (`is`), so that a tensor computed from them on
the way is never mistaken for them.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.errors import ExportError
from edgeformer.transformers_backend.patch_plan import AttentionForm, PatchPlan
from edgeformer.transformers_backend.patches.recurrent import SCANS, RecurrentPatch, Scan
from edgeformer.transformers_backend.patches.rotary import Angles, Rotation, RotationCall
from edgeformer.transformers_backend.transformers_shim import registered_attention, replaced_functions

Caches = list[tuple[Tensor, ...]]
"""Tensors that each layer keeps, in the order of `CacheGeometry`: keys and values [B, K, T, D], states, or none."""

MaskFunction = Callable[[Any, Any, Any, Any], Tensor]
"""A function that transformers composes masks of: (batch, head, query, key) → whether the query sees the key."""


@dataclass
class AttentionCall:
    """The arguments of one call of transformers' attention interface.

    query [B, H, S, D], key [B, K, S, D], value [B, K, S, Dv].
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float | None
    dropout: float
    options: dict[str, Any]


class AttentionPatch(RecurrentPatch):
    """One forward pass through a patched module.

    attention_mask: int64 [B, T]; positions: of the new tokens, int64 [B, S].
    """

    def __init__(self, plan: PatchPlan, caches: Caches, attention_mask: Tensor, input_ids: Tensor):
        named = [dict(zip(plan.tensor_names(layer), cache, strict=True)) for layer, cache in enumerate(caches)]
        super().__init__(plan, named, attention_mask, input_ids)
        self.positions = ops.token_positions(attention_mask, input_ids)
        self.angles: list[Angles] = []
        self._attention_mask = attention_mask
        self._pending: int | None = None  # the layer that updated the cache and has not attended yet

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Let the code of `model` call this object in the current thread, for the length of a `with` block."""
        with registered(), replaced_functions(model, _replacement):
            token = _CURRENT.set(self)
            try:
                yield
            finally:
                _CURRENT.reset(token)

    # A patch reads the plan here. A probe overrides these methods and fills the plan.

    def attention_form(self, layer: int, call: AttentionCall) -> AttentionForm:
        """Return how a layer attends."""
        return self.plan.attentions[layer]

    def rotation(self, call: RotationCall) -> Rotation | None:
        """Return how a call rotates, or None where it is not patched."""
        return self.plan.rotations[call.key]

    def past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer before the pass."""
        return self.pasts[layer]["key"], self.pasts[layer]["value"]

    # Patched code of transformers calls the methods below.

    def past_length(self) -> int:
        """Return the number of tokens before the new ones, padding included."""
        return self._attention_mask.shape[1] - self.positions.shape[1]

    def mask(self, mask_function: MaskFunction) -> Tensor:
        """Return a tensor that stands for a mask: our op takes windows and padding, and reads no mask."""
        return torch.zeros(1, 1, 1, 1, device=self.positions.device)

    def rotate(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Rotate queries and keys with our op, or call `function` where it computes something else."""
        values = (*args, *kwargs.values())
        given = [
            angles for angles in self.angles if any(value is angles.cos or value is angles.sin for value in values)
        ]
        if len(given) != 1:
            self.plan.note(
                f"{function.__name__} is not patched: the cosines it is given are not those of a rotary module"
            )
            return function(*args, **kwargs)
        call = RotationCall(function, args, kwargs, given[0])
        rotation = self.rotation(call)
        if rotation is None:
            return function(*args, **kwargs)
        rotated = [rotation(x, call.angles.positions, call.angles.tables) for x in call.heads]
        return rotated[0] if len(rotated) == 1 else tuple(rotated)

    def update_cache(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Remember which layer attends next; the attention op adds its past to the new keys and values."""
        if self._pending is not None:
            raise ExportError(
                f"layer {self._pending} gave keys and values to the cache and did not attend through transformers' "
                "attention interface. Its attention is code of its own, which only a family file can replace."
            )
        if "key" in self.presents[layer]:
            raise ExportError(
                f"layer {layer} gives keys and values to the cache twice, and the bundle has room for one."
            )
        self._pending = layer
        return key, value

    def attend(self, call: AttentionCall) -> Tensor:
        """Attend with our op; return [B, S, H, Dv]."""
        layer, self._pending = self._pending, None
        if layer is None:
            raise ExportError(
                f"{type(call.module).__name__} attends to keys that it did not just give to the cache: a second time "
                "to the same, or to those of another layer or of an encoder. The bundle's cache has no place for that."
            )
        form = self.attention_form(layer, call)
        query, key, value = (
            _padded(heads, form.head_dim).transpose(1, 2).flatten(2)  # [B, S, H·D]
            for heads in (call.query, call.key, call.value)
        )
        output, *present = ops.group_query_attention(
            query, key, value, *self.past(layer), self._attention_mask,
            form.num_heads, form.num_kv_heads, form.scale,
            sinks=call.options.get("s_aux"), window=form.window, softcap=form.softcap,
        )  # fmt: skip
        self.presents[layer] |= {"key": present[0], "value": present[1]}
        heads = output.unflatten(-1, (form.num_heads, form.head_dim))  # [B, S, H, D]
        return heads if form.value_dim == form.head_dim else heads[..., : form.value_dim]


def _padded(heads: Tensor, width: int) -> Tensor:
    missing = width - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads


_CURRENT: ContextVar[AttentionPatch | None] = ContextVar("attention patch", default=None)
"""The pass that is under way in this thread."""


def current_patch() -> AttentionPatch:
    """Return the pass that is under way."""
    patch = _CURRENT.get()
    assert patch is not None, "no forward pass of a patched module is under way"
    return patch


def registered() -> Any:
    """Offer our attention to transformers, for the length of a `with` block."""
    return registered_attention(_attend, _mask)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **options: object,
) -> tuple[Tensor, None]:  # fmt: skip
    call = AttentionCall(module, query, key, value, attention_mask, scaling, dropout, options)
    return current_patch().attend(call), None


def _mask(*, mask_function: MaskFunction, **options: object) -> Tensor:
    # `options` may hold a padding mask of ones, made where none is given; our op knows what is padding.
    return current_patch().mask(mask_function)


def _replacement(name: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what stands for a function of a modeling file, or None for one that stays."""
    if name.startswith("apply_rotary"):
        return _rotating(function)
    return _scanning(SCANS[name], function) if name in SCANS else None


def _scanning(method: Callable[[RecurrentPatch], Scan], function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def scan(*args: object, **kwargs: object) -> Any:
        patch = _CURRENT.get()
        if patch is None:
            return function(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        return method(patch)(**arguments | arguments.pop("kwargs", {}))

    return scan


def _rotating(function: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(*args: object, **kwargs: object) -> Any:
        patch = _CURRENT.get()
        return function(*args, **kwargs) if patch is None else patch.rotate(function, args, kwargs)

    return rotate
