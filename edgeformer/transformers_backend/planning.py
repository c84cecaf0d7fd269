"""Plan what to patch in a module of transformers, by running it on the meta device, without weights.

`AttentionProbe` is the forward pass that finds out how layers attend and rotate, `RotaryProbe` stands for a rotary
module and finds out its tables; `norms` and `rotary` recognize single functions.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from edgeformer.contract.tensors import ConvState, State
from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patch_plan import AttentionForm, PatchPlan
from edgeformer.transformers_backend.patched_model import (
    PatchedModel,
    PatchedRotary,
    patch_positions,
    takes_positions,
)
from edgeformer.transformers_backend.patches.attention import AttentionCall, AttentionPatch, MaskFunction
from edgeformer.transformers_backend.patches.experts import find_experts
from edgeformer.transformers_backend.patches.norms import PatchedRMSNorm, find_rms_norms
from edgeformer.transformers_backend.patches.positions import find_position_embeddings, first_position
from edgeformer.transformers_backend.patches.rotary import (
    TABLES,
    RotaryForm,
    Rotation,
    RotationCall,
    Tables,
    computes_angles,
    find_rotation,
    rotary_form,
)
from edgeformer.transformers_backend.transformers_shim import ATTENTION_NAME, CACHE_ARGUMENTS, cache_argument

RUNS = ((0, 7), (7, 1))
"""Past and new tokens of the probing runs: a prompt, then a step."""

# Torch's errors about code that reads the values of a tensor on the meta device, which has a shape and no values. They
# are NotImplementedError, RuntimeError or TypeError, as other errors are, so that only their words tell them apart.
READS_VALUES = re.compile(r"meta tensor|register_meta|convert meta device", re.IGNORECASE)

OP_OPTIONS = {"sliding_window", "softcap", "s_aux"}
"""Options of an attention call that our op has; the window is read from the mask."""

# Options that change nothing in the result: they say what was done before, or what to return.
HARMLESS_OPTIONS = {
    *CACHE_ARGUMENTS, "attention_mask", "cache_position", "head_mask", "is_causal", "layer_head_mask", "logits_to_keep",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits",
    "position_ids", "return_dict", "use_cache",
}  # fmt: skip


def make_plan(config: Any, context_length: int) -> PatchPlan:
    """Run the module of a config without weights, and plan all that can be patched in it.

    The plan's context is shorter than `context_length` where the module has positions for fewer tokens. Raises
    ExportError where the module cannot be exported so, saying what was found and what to do.
    """
    model = build(config, torch.float32, ATTENTION_NAME)
    positions, first = find_position_embeddings(model), first_position(model)
    rows = [model.get_submodule(name).num_embeddings - offset for name, offset in positions.items()]
    known = getattr(config, "max_position_embeddings", context_length) - first if first else context_length
    plan = PatchPlan(min(context_length, known, *rows), positions=positions, first_position=first)
    _check_module(model, plan)
    plan.norms, others = find_rms_norms(model, getattr(config, "hidden_size", 64))
    for other in others:
        plan.note(f"{other} is not patched: it does not compute RMSNorm")
    for name, form in plan.norms.items():
        model.set_submodule(name, PatchedRMSNorm(form, torch.float32))
    patch_positions(model, plan)
    plan.experts = find_experts(model)
    for name, experts in plan.experts.items():
        model.set_submodule(name, experts.build(torch.float32))
    for name, module in list(model.named_modules()):
        if computes_angles(module):
            rotary = RotaryProbe(name, module, plan)
            plan.rotaries[name] = rotary.forms
            model.set_submodule(name, rotary)
    _probe(PatchedModel(model.to("meta").eval(), plan))
    # A module stays altogether as it is where no table holds for one kind of layers, or where it is never called. Kinds
    # are sorted, since some modules keep them in a set, whose order differs from process to process.
    patched = {name: forms for name, forms in plan.rotaries.items() if forms and all(forms.values())}
    plan.rotaries = {name: dict(sorted(forms.items())) for name, forms in patched.items()}
    _check_plan(config, plan)
    return plan


def _check_module(model: Any, plan: PatchPlan) -> None:
    """Raise ExportError for a module whose forward or whose parts the backend cannot patch."""
    name = type(model).__name__
    if cache_argument(model.forward) is None:
        raise ExportError(
            f"{name} keeps no cache of keys and values (its forward takes none of {', '.join(CACHE_ARGUMENTS)}): it is "
            "recurrent, or has no cache, and a bundle's runtime needs one."
        )
    if not takes_positions(model) and not plan.positions:
        raise ExportError(
            f"{name} takes no position_ids, and has no embedding that does, so the rows of a batch could not stand at "
            "different places."
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
            if READS_VALUES.search(str(error)):
                raise ExportError(
                    f"{name} of transformers looks at values to decide what it computes next (experts outside of "
                    "transformers' experts interface, most often), which a graph cannot. Only a family file can "
                    "export it."
                ) from error
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
    """Raise ExportError unless a layer attends, with the windows that the config says; count the layers."""
    kept = (*plan.attentions, *plan.convolutions, *plan.recurrences)
    if not kept:
        raise ExportError(
            "no layer attends to a cache of its own through transformers' attention interface. Only a family file can "
            "export it."
        )
    plan.num_layers = max(getattr(config, "num_hidden_layers", 0), 1 + max(kept))
    kinds = getattr(config, "layer_types", None) or []
    for layer, kind in enumerate(kinds[: plan.num_layers]):
        if layer not in plan.attentions:
            continue
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
                self._plan.note(f"{self._name} is not patched: it does not compute cos and sin of position · frequency")
        return self.forms[kind]

    def _tables(self, kind: str, form: RotaryForm) -> Tables:
        shape = self._plan.context_length, len(form.frequencies)
        return {table: torch.empty(shape, device="meta") for table in TABLES}


class AttentionProbe(AttentionPatch):
    """A forward pass over `new` tokens after `past` ones, two rows of them as shapes alone, that fills the plan."""

    def __init__(self, plan: PatchPlan, model: nn.Module, past: int, new: int):
        self.input_ids = torch.zeros(2, new, dtype=torch.int64, device="meta")
        mask = torch.ones(2, past + new, dtype=torch.int64, device="meta")
        super().__init__(plan, [], mask, self.input_ids)
        self._names = {module: name for name, module in model.named_modules()}
        self._masks: list[tuple[Tensor, MaskFunction]] = []

    def missed_attention(self) -> bool:
        """Return whether a layer attended without the attention interface, after the pass."""
        return self._pending is not None or {layer for layer in self.presents if "key" in self.presents[layer]} != set(
            self.plan.attentions
        )

    def past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return an empty past of the geometry that the layer turned out to have."""
        form = self.plan.attentions[layer]
        past = torch.empty(2, form.num_kv_heads, self.past_length(), form.head_dim, device="meta")
        return past, past

    def past_state(self, layer: int, state: State) -> Tensor:
        """Note the state of a layer, and return one without values."""
        known: dict[int, Any] = self.plan.convolutions if isinstance(state, ConvState) else self.plan.recurrences
        if known.setdefault(layer, state) != state:
            raise ExportError(f"layer {layer} keeps two states of one kind: {known[layer]} and {state}.")
        return torch.empty(2, *(size or 0 for size in state.dims), device="meta")

    def mask(self, mask_function: MaskFunction) -> Tensor:
        """Return a tensor that stands for a mask, and remember its function."""
        mask = super().mask(mask_function)
        self._masks.append((mask, mask_function))
        return mask

    def rotation(self, call: RotationCall) -> Rotation | None:
        """Find out how a call rotates."""
        rotations = self.plan.rotations
        if call.key not in rotations:
            rotations[call.key] = find_rotation(call)
            if rotations[call.key] is None:
                self.plan.note(f"{call.function.__name__} is not patched: it does not pair elements as our op does")
        return rotations[call.key]

    def attention_form(self, layer: int, call: AttentionCall) -> AttentionForm:
        """Find out how a layer attends. Raises ExportError where the op cannot attend so."""
        name = self._names.get(call.module, type(call.module).__name__)
        reason = _unsupported(call)
        if reason is not None:
            raise ExportError(f"{name} {reason}")
        query, value, options = call.query, call.value, call.options
        head_dim = max(query.shape[-1], value.shape[-1])
        form = AttentionForm(
            module=name,
            num_heads=query.shape[1],
            num_kv_heads=call.key.shape[1],
            head_dim=head_dim,
            value_dim=value.shape[-1],
            scale=float(query.shape[-1] ** -0.5 if call.scaling is None else call.scaling),
            window=self._window(f"{name} (layer {layer})", name, call),
            softcap=float(options.get("softcap") or 0.0),
            sinks=options.get("s_aux") is not None,
        )
        known = self.plan.attentions.setdefault(layer, form)
        if known != form:
            raise ExportError(f"{name} attends in one way in a prompt and in another in a step: {known}, {form}.")
        if query.shape[-1] != value.shape[-1]:
            self.plan.note(f"heads of {value.shape[-1]} elements are padded to {head_dim} in the cache")
        return form

    def _window(self, place: str, name: str, call: AttentionCall) -> int:
        """Return the window of a call's mask; it must be the one that the layer tells kernels without masks."""
        function = next((function for mask, function in self._masks if mask is call.mask), None)
        if function is None:
            what = "no mask" if call.mask is None else "a mask that it made or changed itself"
            raise ExportError(f"{name} attends with {what}, so nothing says which tokens it sees.")
        window = window_of(function, self.plan.context_length)
        told = call.options.get("sliding_window")
        if told is not None and told < self.plan.context_length and told != window:
            raise ExportError(
                f"{place} tells its attention of a window of {told}, and its mask has {window or 'none'}. Which of the "
                "two it was trained with is not for edgeformer to guess."
            )
        return window


def _unsupported(call: AttentionCall) -> str | None:
    """Return what a call asks for that the op does not have, or None."""
    query, key, value = call.query, call.key, call.value
    unknown = [
        option
        for option, given in call.options.items()
        if option not in OP_OPTIONS | HARMLESS_OPTIONS and given is not None and given is not False
    ]
    if unknown:
        return f"gives its attention {', '.join(unknown)}, which the attention op does not have."
    if call.options.get("output_attentions"):
        return "asks for attention weights, which the attention op does not return."
    if call.dropout:
        return f"drops out attention weights ({call.dropout}) when it is not trained."
    if query.dim() != 4 or query.shape[2] != key.shape[2] or key.shape[:3] != value.shape[:3]:
        shapes = ", ".join(str(list(heads.shape)) for heads in (query, key, value))
        return f"attends with queries, keys and values of shapes {shapes}; not self-attention."
    if query.shape[-1] != key.shape[-1] or query.shape[1] % key.shape[1]:
        return f"has {query.shape[1]} heads over {key.shape[1]} of another size."
    return None


def window_of(mask_function: MaskFunction, context_length: int) -> int:
    """Return how many keys a query sees, itself included, or 0 where it sees all before it.

    The mask function is asked position by position: what it answers counts, not what a config says. Raises ExportError
    for anything but causal attention, plain or with a window that is the same everywhere.
    """
    last = context_length - 1
    keys = torch.arange(context_length + 1)
    window = int(_visible(mask_function, last, keys).sum())
    if window > last:
        window = 0
    for query in sorted({0, 1, window - 1, window, window + 1, last // 2, last - 1, last}):
        if not 0 <= query <= last:
            continue
        visible = _visible(mask_function, query, keys)
        if visible[query + 1 :].any():
            raise ExportError(
                f"token {query} attends to tokens after it, and a decoder with a cache cannot. A model of the BERT "
                "family is one only with is_decoder in its config.json."
            )
        expected = (keys <= query) & (keys > query - window) if window else keys <= query
        if not torch.equal(visible, expected):
            raise ExportError(
                f"token {query} attends to {int(visible.sum())} of the tokens up to it, token {last} to "
                f"{window or 'all'}: that is neither causal attention nor a window (chunks or blocks, perhaps), and "
                "the attention op has no such pattern."
            )
    return window


def _visible(mask_function: MaskFunction, query: int, keys: Tensor) -> Tensor:
    zero = torch.zeros(1, dtype=torch.int64)
    visible: Any = mask_function(zero, zero, torch.tensor([query]), keys)
    return torch.as_tensor(visible, dtype=torch.bool).expand(keys.shape)
