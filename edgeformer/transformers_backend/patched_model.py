"""A causal LM of transformers as a decoder module of ours, with its norms, rotations and attention patched."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer.transformers_backend.float64 import computing_in_float64
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.patches.attention import AttentionPatch, Caches, current_patch
from edgeformer.transformers_backend.patches.norms import PatchedRMSNorm
from edgeformer.transformers_backend.patches.rotary import TABLES, Angles, RotaryForm, Tables
from edgeformer.transformers_backend.transformers_shim import ATTENTION_NAME, PatchedCache, cache_argument


class PatchedRotary(nn.Module):
    """A rotary module of transformers that reads its cosines and sines from tables.

    forms: by kind of layer. tables: of a form; they become buffers, named {kind}_{table} where there are several kinds.
    """

    def __init__(
        self,
        name: str,
        original: nn.Module,
        forms: dict[str, RotaryForm | None],
        tables: Callable[[RotaryForm], Tables],
    ):
        super().__init__()
        self.forms = forms
        self._name = name
        self._signature = inspect.signature(original.forward)
        # In a tuple, since its buffers are no part of ours: other code reads its attributes.
        self._original = (original,)
        for kind, form in forms.items():
            for table, value in (tables(form) if form is not None else {}).items():
                self.register_buffer(_buffer_name(kind, table), value, persistent=False)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Return cosines and sines in the layout of the original, or what the original returns if it has no form."""
        given = self._signature.bind(*args, **kwargs).arguments
        layer_type = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
        positions = given["position_ids"]
        kind = "_".join(str(value) for value in layer_type.values())
        form = self._form(kind, layer_type, positions)
        if form is None:
            return self._original[0](*args, **kwargs)
        tables = self._tables(kind, form)
        cos, sin = form.rows(tables, positions)
        current_patch().angles.append(Angles(f"{self._name}.{kind}", form, positions, tables, cos, sin))
        return cos, sin

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"][0], name)

    def _form(self, kind: str, layer_type: Mapping[str, Any], positions: Tensor) -> RotaryForm | None:
        return self.forms[kind]

    def _tables(self, kind: str, form: RotaryForm) -> Tables:
        buffers = {table: self._buffers.get(_buffer_name(kind, table)) for table in TABLES}
        return {table: buffer for table, buffer in buffers.items() if buffer is not None}


def _buffer_name(kind: str, table: str) -> str:
    return f"{kind}_{table}" if kind else table


class PatchedPositions(nn.Module):
    """An embedding of positions that reads the positions of the pass, whatever it is given. weight: [N, E]."""

    def __init__(self, original: nn.Embedding, offset: int):
        super().__init__()
        self.offset = offset
        self.weight = original.weight

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Return the rows of the positions [B, S]: [B, S, E]."""
        return F.embedding(current_patch().positions + self.offset, self.weight)


class PatchedModel(nn.Module):
    """A causal LM of transformers with the forward of our decoders. Parameters keep their names there."""

    def __init__(self, model: Any, plan: PatchPlan, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.plan = plan
        self._in_float64 = dtype == torch.float64
        # Its children become ours, so that names need no prefix; the model itself is only called.
        self._causal_lm = (model,)
        for name, child in model.named_children():
            self.add_module(name, child)

    @property
    def causal_lm(self) -> Any:
        """Return the module of transformers inside."""
        return self._causal_lm[0]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, caches: Caches) -> tuple[Tensor, Caches]:
        """input_ids int64 [B, S], attention_mask int64 [B, T], caches of every layer → logits [B, S, V], presents."""
        attention_patch = AttentionPatch(self.plan, caches, attention_mask, input_ids)
        logits = self.run(input_ids, attention_patch)
        presents = attention_patch.presents
        return logits, [
            tuple(presents[layer][name] for name in self.plan.tensor_names(layer)) for layer in range(len(caches))
        ]

    def run(self, input_ids: Tensor, attention_patch: AttentionPatch) -> Tensor:
        """Run one forward pass that `attention_patch` serves; return logits [B, S, V].

        In float64, code of transformers that rounds to float32 computes in float64 instead.
        """
        model = self.causal_lm
        name = cache_argument(model.forward)
        assert name is not None, "planning refuses such a model"
        options: dict[str, Any] = {"use_cache": True, "return_dict": True, name: PatchedCache(attention_patch)}
        if takes_positions(model):
            first = self.plan.first_position
            options["position_ids"] = attention_patch.positions + first if first else attention_patch.positions
        with attention_patch.applied(model), computing_in_float64() if self._in_float64 else nullcontext():
            return model(input_ids=input_ids, **options).logits


def takes_positions(model: nn.Module) -> bool:
    """Return whether the forward of a causal LM takes the positions of its tokens."""
    return "position_ids" in inspect.signature(model.forward).parameters


def patch_positions(model: nn.Module, plan: PatchPlan) -> None:
    """Replace the embeddings of positions that a plan lists."""
    for name, offset in plan.positions.items():
        original = model.get_submodule(name)
        assert isinstance(original, nn.Embedding)
        model.set_submodule(name, PatchedPositions(original, offset))


def build_patched(config: Any, plan: PatchPlan, dtype: torch.dtype) -> PatchedModel:
    """Build the module that a plan describes; parameters are on the meta device.

    For float64 the rest of the module is built in float32: transformers' modules are not made for float64.
    """
    model = build(config, torch.float32 if dtype == torch.float64 else dtype, ATTENTION_NAME)
    for name, form in plan.norms.items():
        model.set_submodule(name, PatchedRMSNorm(form, dtype))
    for name, experts in plan.experts.items():
        model.set_submodule(name, experts.build(dtype))
    patch_positions(model, plan)
    backwards = any(rotation is not None and rotation.backwards for rotation in plan.rotations.values())

    @cache  # rotary modules of the same form share their tables
    def tables(form: RotaryForm) -> dict[str, Tensor]:
        values = form.tables(plan.context_length)
        return {name: value.to(dtype) for name, value in values.items() if backwards or name != "negative_sin"}

    for name, forms in plan.rotaries.items():
        model.set_submodule(name, PatchedRotary(name, model.get_submodule(name), forms, tables))
    return PatchedModel(model.eval(), plan, dtype)
