"""A causal LM of transformers behind our forward contract, with its norms, rotations and attention as our ops."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.export.adapters.transformers_backend.attention import (
    NAME,
    Angles,
    AttentionPatch,
    Caches,
    PatchedCache,
    active,
    patched_attention,
)
from edgeformer.export.adapters.transformers_backend.float64 import unrounded
from edgeformer.export.adapters.transformers_backend.hf_module import build, forward_arguments
from edgeformer.export.adapters.transformers_backend.norms import PatchedRMSNorm
from edgeformer.export.adapters.transformers_backend.patch_plan import Plan
from edgeformer.export.adapters.transformers_backend.rotary import RotaryForm


class PatchedRotary(nn.Module):
    """A rotary module of transformers over tables of all positions."""

    def __init__(
        self,
        name: str,
        original: nn.Module,
        forms: dict[str, RotaryForm | None],
        tables: Callable[[RotaryForm], dict[str, Tensor]],
    ):
        super().__init__()
        self._name = name
        self.forms = forms
        self._signature = inspect.signature(original.forward)
        # Kept for what other code reads from it, and called where no table holds; its buffers are no part of ours.
        self._original = (original,)
        for kind, form in forms.items():
            for table, value in (tables(form) if form is not None else {}).items():
                self.register_buffer(buffer_name(kind, table), value, persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Cosines and sines in the layout of the original, or whatever the original returns where no table holds."""
        given = self._signature.bind(*args, **kwargs).arguments
        options = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        kind = "_".join(str(value) for value in options.values())
        form = self._form(kind, options, given["position_ids"])
        if form is None:
            return self._original[0](*args, **kwargs)
        angles = Angles(
            f"{self._name}.{kind}", form, given["position_ids"], self._table(kind, form, "cos"),
            lambda negative: self._table(kind, form, "negative_sin" if negative else "sin"),
        )  # fmt: skip
        return active().angles(*angles.spread(), angles)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"][0], name)

    def _form(self, kind: str, options: dict[str, Any], positions: Tensor) -> RotaryForm | None:
        return self.forms[kind]

    def _table(self, kind: str, form: RotaryForm, table: str) -> Tensor:
        return self.get_buffer(buffer_name(kind, table))


class _SharedTables:
    """Tables by form: where every layer has a rotary module of its own, all of them hold the same tensors."""

    def __init__(self, plan: Plan, dtype: torch.dtype):
        self._plan = plan
        self._dtype = dtype
        self._tables: dict[RotaryForm, dict[str, Tensor]] = {}

    def __call__(self, form: RotaryForm) -> dict[str, Tensor]:
        if form not in self._tables:
            cos, sin = form.tables(self._plan.context_length)
            tables = {"cos": cos, "sin": sin}
            if any(turn is not None and turn.backwards for turn in self._plan.turns.values()):
                tables["negative_sin"] = -sin
            self._tables[form] = {name: table.to(self._dtype) for name, table in tables.items()}
        return self._tables[form]


def buffer_name(kind: str, table: str) -> str:
    """What the table of a kind of layer is called; where there is one kind, it has no name."""
    return f"{kind}_{table}" if kind else table


class PatchedModel(nn.Module):
    """The forward contract of a decoder over a causal LM of transformers. Parameters keep their names there."""

    def __init__(self, model: Any, plan: Plan, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.plan = plan
        self._exact = dtype == torch.float64
        self._arguments = forward_arguments(model)
        # Its children are ours, so that names need no prefix; the module itself is only called.
        self._causal_lm = (model,)
        for name, child in model.named_children():
            self.add_module(name, child)

    @property
    def causal_lm(self) -> Any:
        """The module of transformers inside."""
        return self._causal_lm[0]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
        """input_ids int64 [B, S], attention_mask int64 [B, T], caches of every layer → logits [B, S, V], presents."""
        attention_patch = AttentionPatch(
            self.plan, caches, attention_mask, ops.token_positions(attention_mask, input_ids)
        )
        logits = self.run(input_ids, attention_patch)
        return logits, [attention_patch.presents[layer] for layer in range(len(caches))]

    def run(self, input_ids: Tensor, attention_patch: AttentionPatch) -> Tensor:
        """One pass that `routing` serves; what transformers rounds to float32 inside stays float64 in float64."""
        model = self.causal_lm
        arguments = {"past_key_values": PatchedCache(attention_patch), "use_cache": True, "return_dict": True}
        if "position_ids" in self._arguments:
            arguments["position_ids"] = attention_patch.positions
        with patched_attention(model, attention_patch), unrounded() if self._exact else nullcontext():
            return model(input_ids=input_ids, **arguments).logits


def patch(config: Any, plan: Plan, dtype: torch.dtype) -> PatchedModel:
    """Build the module that a plan describes; parameters on the meta device.

    In float64, which transformers' own modules are not made for, whatever else they hold is that of float32.
    """
    model = build(config, torch.float32 if dtype == torch.float64 else dtype, NAME)
    for name, form in plan.norms.items():
        replace_module(model, name, PatchedRMSNorm(form, dtype))
    tables = _SharedTables(plan, dtype)
    for name, forms in plan.rotaries.items():
        replace_module(model, name, PatchedRotary(name, model.get_submodule(name), forms, tables))
    return PatchedModel(model.eval(), plan, dtype)


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put another module in the place of the one of this name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
