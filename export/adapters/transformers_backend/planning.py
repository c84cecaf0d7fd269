"""Plan what to patch in a module of transformers, by running it without weights."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.adapters.transformers_backend.attention_probe import AttentionProbe
from edgeformer.export.adapters.transformers_backend.hf_module import build, forward_arguments
from edgeformer.export.adapters.transformers_backend.norms import PatchedRMSNorm, find_rms_norms
from edgeformer.export.adapters.transformers_backend.patch_plan import PatchPlan
from edgeformer.export.adapters.transformers_backend.patched_model import PatchedModel, PatchedRotary, replace_module
from edgeformer.export.adapters.transformers_backend.rotary import RotaryForm, Tables, computes_angles, rotary_form
from edgeformer.export.adapters.transformers_backend.transformers_shim import ATTENTION_NAME

RUNS = ((0, 7), (7, 1))
"""Past and new tokens of the probing runs: a prompt, then a step."""


def make_plan(config: Any, context_length: int) -> PatchPlan:
    """Run the module of a config without weights, and plan all that can be patched in it.

    Raises ExportError where the module cannot be exported so, saying what was found and what to do.
    """
    plan = PatchPlan(context_length)
    model = build(config, torch.float32, ATTENTION_NAME)
    _check_module(model)
    plan.norms, others = find_rms_norms(model, getattr(config, "hidden_size", 64))
    for other in others:
        plan.note(f"{other} stays as it is: it is no RMSNorm of ours")
    for name, form in plan.norms.items():
        replace_module(model, name, PatchedRMSNorm(form, torch.float32))
    for name, module in list(model.named_modules()):
        if computes_angles(module):
            rotary = RotaryProbe(name, module, plan)
            plan.rotaries[name] = rotary.forms
            replace_module(model, name, rotary)
    _probe(PatchedModel(model.to("meta").eval(), plan))
    # A module stays altogether as it is where no table holds for one kind of layers, or where it is never called.
    plan.rotaries = {name: forms for name, forms in plan.rotaries.items() if forms and all(forms.values())}
    _check_plan(config, plan)
    return plan


def _check_module(model: Any) -> None:
    """Raise ExportError for a module whose forward or whose parts the backend cannot patch."""
    name = type(model).__name__
    arguments = forward_arguments(model)
    if "past_key_values" not in arguments:
        raise ExportError(
            f"{name} keeps no cache of keys and values (its forward takes no past_key_values): it is recurrent, or has "
            "no cache, and a bundle's runtime needs one."
        )
    if "position_ids" not in arguments:
        raise ExportError(f"{name} takes no position_ids, so the rows of a batch could not stand at different places.")
    experts = sorted({type(module).__name__ for module in model.modules() if "Expert" in type(module).__name__})
    if experts:
        raise ExportError(
            f"it is a mixture of experts ({', '.join(experts)}): which weights a token meets is decided while it runs, "
            "and a graph of fixed products cannot say that."
        )
    top = [name for name, _ in (*model.named_parameters(recurse=False), *model.named_buffers(recurse=False))]
    if top:
        raise ExportError(f"{name} holds {', '.join(top)} itself, not in a module inside it.")


def _probe(module: PatchedModel) -> None:
    """Run a prompt and then a step as shapes alone, which fills the plan."""
    name = type(module.causal_lm).__name__
    for past, new in RUNS:
        probe = AttentionProbe(module.plan, module.causal_lm, past, new)
        try:
            with torch.no_grad():
                module.plan.vocab_size = module.run(probe.input_ids, probe).shape[-1]
        except EdgeformerError:
            raise
        except Exception as error:  # code that is not ours may raise anything
            reason = next(iter(str(error).strip().splitlines()), "no reason given")[:300]
            raise ExportError(
                f"{name} of transformers could not be run with our attention: {type(error).__name__}: {reason}"
            ) from error
        if probe.missed_attention():
            raise ExportError(
                f"{name} computes its attention itself, not through transformers' attention interface. Only a family "
                "file can export it."
            )


def _check_plan(config: Any, plan: PatchPlan) -> None:
    """Raise ExportError unless all layers have caches of one size, and the windows that the config says."""
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


class RotaryProbe(PatchedRotary):
    """A rotary module on the meta device that finds out its form for each kind of layer when it is first called."""

    def __init__(self, name: str, original: nn.Module, plan: PatchPlan):
        super().__init__(name, original, {}, lambda form: {})
        self._plan = plan
        self._copy = (deepcopy(original),)  # it stays off the meta device, and running it may change its buffers

    def _form(self, kind: str, layer_type: Mapping[str, Any], positions: Tensor) -> RotaryForm | None:
        if kind not in self.forms:
            # Models of images may have positions of several axes, which no table holds.
            is_text = positions.dim() == 2
            length = self._plan.context_length
            self.forms[kind] = rotary_form(self._copy[0], self._name, length, layer_type) if is_text else None
            if self.forms[kind] is None:
                self._plan.note(f"{self._name} stays as it is: it makes no cosines and sines of position · frequency")
        return self.forms[kind]

    def _tables(self, kind: str, form: RotaryForm) -> Tables:
        shape = self._plan.context_length, len(form.frequencies)
        return {table: torch.empty(shape, device="meta") for table in ("cos", "sin", "negative_sin")}
