"""Find out what there is to reroute, by running a module of transformers without weights."""

from typing import Any

import torch
from torch import Tensor, nn

from edgeformer import ops
from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.adapters.transformers_backend.attention import NAME, AttentionPatch
from edgeformer.export.adapters.transformers_backend.hf_module import build, forward_arguments
from edgeformer.export.adapters.transformers_backend.norms import PatchedRMSNorm, find_rms_norms
from edgeformer.export.adapters.transformers_backend.patch_plan import Plan
from edgeformer.export.adapters.transformers_backend.patched_model import PatchedModel, PatchedRotary, replace_module
from edgeformer.export.adapters.transformers_backend.rotary import RotaryForm, RotaryProbe, makes_angles


def make_plan(config: Any, context_length: int) -> Plan:
    """Run the module without weights and find out all that there is to reroute.

    Raises ExportError where the module cannot be rerouted, saying what was found and what to do.
    """
    plan = Plan(context_length)
    model = build(config, torch.float32, NAME)
    arguments = forward_arguments(model)
    if "past_key_values" not in arguments:
        raise ExportError(
            f"{type(model).__name__} keeps no cache of keys and values (its forward takes no past_key_values): it is "
            "recurrent, or has no cache, and a bundle's runtime needs one."
        )
    if "position_ids" not in arguments:
        raise ExportError(
            f"{type(model).__name__} takes no position_ids, so the rows of a batch could not stand at different places."
        )
    experts = sorted({type(module).__name__ for module in model.modules() if "Expert" in type(module).__name__})
    if experts:
        raise ExportError(
            f"it is a mixture of experts ({', '.join(experts)}): which weights a token meets is decided while it runs, "
            "and a graph of fixed products cannot say that."
        )
    top = [name for name, _ in (*model.named_parameters(recurse=False), *model.named_buffers(recurse=False))]
    if top:
        raise ExportError(f"{type(model).__name__} holds {', '.join(top)} itself, not in a module inside it.")
    plan.norms, others = find_rms_norms(model, getattr(config, "hidden_size", 64))
    for other in others:
        plan.note(f"{other} stays as it is: it is no RMSNorm of ours")
    for name, form in plan.norms.items():
        replace_module(model, name, PatchedRMSNorm(form, torch.float32))
    for name, module in list(model.named_modules()):
        if makes_angles(module):
            rotary = LearningRotary(name, module, plan)
            plan.rotaries[name] = rotary.forms
            replace_module(model, name, rotary)
    _learn(PatchedModel(model.to("meta").eval(), plan))
    # A module some of whose angles are no table, or that is never called, stays altogether as it is.
    plan.rotaries = {name: forms for name, forms in plan.rotaries.items() if forms and all(forms.values())}
    _check(config, plan)
    return plan


def _learn(module: PatchedModel) -> None:
    """Run a prompt and then a step, as shapes alone."""
    model = module.causal_lm
    for past, new in ((0, 7), (7, 1)):
        ids = torch.zeros(2, new, dtype=torch.int64, device="meta")
        mask = torch.ones(2, past + new, dtype=torch.int64, device="meta")
        caches = _EmptyCaches(module.plan, past)
        attention_patch = AttentionPatch(module.plan, caches, mask, ops.token_positions(mask, ids), learning=True)  # type: ignore[arg-type]
        attention_patch.name_modules(model)
        try:
            with torch.no_grad():
                module.plan.vocab_size = module.run(ids, attention_patch).shape[-1]
        except EdgeformerError:
            raise
        except Exception as error:  # code that is not ours, which may raise anything
            raise ExportError(
                f"{type(model).__name__} of transformers could not be run with our attention: "
                f"{type(error).__name__}: {_first_line(error)}"
            ) from error
        if attention_patch._pending is not None or set(attention_patch.presents) != set(module.plan.attentions):
            raise ExportError(
                f"{type(model).__name__} computes its attention itself, not through transformers' attention interface. "
                "Only a family file can export it."
            )


class _EmptyCaches:
    """Pasts on the meta device, of whatever geometry the layers turn out to have."""

    def __init__(self, plan: Plan, past: int):
        self._plan = plan
        self._past = past

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        form = self._plan.attentions[layer]
        past = torch.empty(2, form.num_kv_heads, self._past, form.head_dim, device="meta")
        return past, past


def _check(config: Any, plan: Plan) -> None:
    """Hold the layers to each other and to the config."""
    layers = getattr(config, "num_hidden_layers", len(plan.attentions))
    if sorted(plan.attentions) != list(range(layers)) or not plan.attentions:
        found = len(plan.attentions)
        raise ExportError(
            f"{found} of its {layers} layers attend to a cache of their own through transformers' attention interface; "
            "the others do something else, and the bundle has a cache for every layer."
        )
    sizes = {(form.num_kv_heads, form.head_dim) for form in plan.attentions.values()}
    if len(sizes) > 1:
        listed = ", ".join(f"{heads} × {width}" for heads, width in sorted(sizes))
        raise ExportError(f"its layers have caches of different sizes (heads × head_dim: {listed}); a bundle has one.")
    kinds = getattr(config, "layer_types", None) or []
    for layer, kind in enumerate(kinds[:layers]):
        form = plan.attentions[layer]
        sliding = "sliding" in str(kind)
        wanted = getattr(config, "sliding_window", None) if sliding else 0
        if wanted is not None and (wanted if wanted < plan.context_length else 0) != form.window:
            raise ExportError(
                f"config.json says that layer {layer} is {kind} (sliding_window {wanted}), and its attention "
                f"({form.module}) has a window of {form.window or 'none'}."
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")[:300]


class LearningRotary(PatchedRotary):
    """The same on the meta device, finding out what the original computes when it is first asked for it."""

    def __init__(self, name: str, original: nn.Module, plan: Plan):
        super().__init__(name, original, {}, lambda form: {})
        self._plan = plan
        self._probe = RotaryProbe(original, name, plan.context_length)

    def _form(self, kind: str, options: dict[str, Any], positions: Tensor) -> RotaryForm | None:
        if kind not in self.forms:
            # Some models count images in positions of several dimensions.
            self.forms[kind] = self._probe.form(options) if positions.dim() == 2 else None
            if self.forms[kind] is None:
                self._plan.note(f"{self._name} stays as it is: it makes no cosines and sines of position · frequency")
        return self.forms[kind]

    def _table(self, kind: str, form: RotaryForm, table: str) -> Tensor:
        return torch.empty(self._plan.context_length, len(form.frequencies), device="meta")
