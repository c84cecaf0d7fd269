"""Attention of transformers' modules as our op, through transformers' own attention interface.

    module → rotary module ──cos, sin──→ apply_rotary_pos_emb(q, k, cos, sin) → cache.update(k, v) → attention(q, k, v)
                 │ tables of the plan          │ ops.rotary_embedding               │ which layer       │ ops.group_…
                 └───────────────────────────────────── Routing ───────────────────────────────────────┘

A `Routing` is one forward pass: it hands every layer its past and keeps its present. Cosines, sines and masks travel
through code that is not ours; they are known again by being the same objects, so whatever was computed from them on the
way is never mistaken for them.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from edgeformer import ops
from edgeformer.errors import ExportError
from edgeformer.export.adapters.transformers_backend.masks import MaskFunction, window_of
from edgeformer.export.adapters.transformers_backend.patch_plan import AttentionForm, Plan
from edgeformer.export.adapters.transformers_backend.rotary import LAYOUTS, RotaryCall, RotaryForm, find_turn

NAME = "edgeformer"
"""Our entry in transformers' registries of attention and of masks."""

Caches = list[tuple[Tensor, Tensor]]

# What an attention may be given that changes nothing in its result: it says what was done before, or what to return.
HARMLESS = {
    "attention_mask", "cache_position", "head_mask", "is_causal", "layer_head_mask", "logits_to_keep",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits", "past_key_values",
    "position_ids", "return_dict", "use_cache",
}  # fmt: skip


class AttentionPatch:
    """One forward pass through a rerouted module.

    plan: is read; where `learning`, it is written instead. presents: of every layer, when the pass is over.
    """

    def __init__(self, plan: Plan, caches: Caches, attention_mask: Tensor, positions: Tensor, learning: bool = False):
        self.plan = plan
        self.positions = positions
        self.presents: dict[int, tuple[Tensor, Tensor]] = {}
        self._caches = caches
        self._attention_mask = attention_mask
        self._learning = learning
        self._pending: int | None = None
        self._modules: dict[int, str] = {}
        # Known objects, with a hold on each so that its id is not given to another.
        self._tables: dict[int, tuple[Tensor, Angles]] = {}
        self._windows: dict[int, tuple[Tensor, int | None]] = {}

    def name_modules(self, model: nn.Module) -> None:
        """Learn the names of the modules that will attend."""
        self._modules = {id(module): name for name, module in model.named_modules()}

    @property
    def past_length(self) -> int:
        """Tokens before the new ones, as transformers' code counts them."""
        return self._attention_mask.shape[1] - self.positions.shape[1]

    # Masks

    def mask(self, mask_function: MaskFunction) -> Tensor:
        """A tensor to stand for a mask; only `attend` looks at it, and only at which it is."""
        window = window_of(mask_function, self.plan.context_length) if self._learning else None
        mask = torch.zeros(1, 1, 1, 1, device=self.positions.device)
        self._windows[id(mask)] = mask, window
        return mask

    # Rotary embeddings

    def angles(self, cos: Tensor, sin: Tensor, angles: "Angles") -> tuple[Tensor, Tensor]:
        """Remember that these cosines and sines came from a table."""
        self._tables |= {id(cos): (cos, angles), id(sin): (sin, angles)}
        angles.cos, angles.sin = cos, sin
        return cos, sin

    def turn(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do with our op what a function of transformers does to queries and keys, or let it do so itself."""
        known = [self._tables[id(value)][1] for value in (*args, *kwargs.values()) if id(value) in self._tables]
        if not known or any(angles is not known[0] for angles in known):
            self.plan.note(f"{function.__name__} stays as it is: its cosines are changed on their way to it")
            return function(*args, **kwargs)
        angles = known[0]
        call = RotaryCall(
            function,
            args,
            kwargs,
            angles.positions,
            lambda value: value is angles.cos,
            lambda value: value is angles.sin,
        )
        key = (function.__module__, function.__name__, angles.name, call.key)
        if self._learning and key not in self.plan.turns:
            self.plan.turns[key] = find_turn(function, call, angles.form)
            if self.plan.turns[key] is None:
                self.plan.note(f"{function.__name__} stays as it is: it turns pairs as no pairing of our op does")
        turn = self.plan.turns[key]
        if turn is None:
            return function(*args, **kwargs)
        sine = angles.sine(turn.backwards)
        turned = [turn(x, angles.positions, angles.cosine, sine) for x in call.heads]
        return turned[0] if len(turned) == 1 else tuple(turned)

    # Attention

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """What a cache does with new keys and values: here, only say whose they are."""
        if self._pending is not None:
            raise ExportError(
                f"layer {self._pending} gave keys and values to the cache and did not attend through transformers' "
                "attention interface. Its attention is code of its own, which only a family file can replace."
            )
        if layer in self.presents:
            raise ExportError(
                f"layer {layer} gives keys and values to the cache twice, and the bundle has room for one."
            )
        self._pending = layer
        return key, value

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None, dropout: float, options: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        """query [B, H, S, D], key [B, K, S, D], value [B, K, S, Dv] → [B, S, H, Dv]."""
        layer, self._pending = self._pending, None
        if layer is None:
            raise ExportError(
                f"{type(module).__name__} attends to keys that it did not just give to the cache: a second time to the "
                "same, or to those of another layer or of an encoder. The bundle's cache has no place for that."
            )
        if self._learning:
            self._learn(layer, module, query, key, value, attention_mask, scaling, dropout, options)
        form = self.plan.attentions[layer]
        sinks = options.get("s_aux")
        width = form.head_dim
        query, key, value = (_widen(heads, width).transpose(1, 2).flatten(2) for heads in (query, key, value))
        output, present_key, present_value = ops.group_query_attention(
            query, key, value, *self._caches[layer], self._attention_mask,
            form.num_heads, form.num_kv_heads, form.scale,
            sinks=sinks, window=form.window, softcap=form.softcap,
        )  # fmt: skip
        self.presents[layer] = present_key, present_value
        heads = output.unflatten(-1, (form.num_heads, width))  # [B, S, H, D]
        return heads if form.value_dim == width else heads[..., : form.value_dim]

    def _learn(
        self, layer: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None, dropout: float, options: dict[str, Any],
    ) -> None:  # fmt: skip
        name = self._modules.get(id(module), type(module).__name__)
        understood = {"sliding_window", "softcap", "s_aux"} | HARMLESS
        strange = [
            option
            for option, given in options.items()
            if option not in understood and given is not None and given is not False
        ]
        if strange:
            raise ExportError(f"{name} gives its attention {', '.join(strange)}, which the attention op does not have.")
        if options.get("output_attentions"):
            raise ExportError(f"{name} asks for attention weights, which the attention op does not return.")
        if dropout:
            raise ExportError(f"{name} drops out attention weights ({dropout}) when it is not trained.")
        if query.dim() != 4 or query.shape[2] != key.shape[2] or key.shape[:3] != value.shape[:3]:
            shapes = ", ".join(str(list(heads.shape)) for heads in (query, key, value))
            raise ExportError(f"{name} attends with queries, keys and values of shapes {shapes}; not self-attention.")
        if query.shape[-1] != key.shape[-1] or query.shape[1] % key.shape[1]:
            raise ExportError(f"{name} has {query.shape[1]} heads over {key.shape[1]} of another size.")
        if id(attention_mask) not in self._windows:
            what = "no mask" if attention_mask is None else "a mask that it made or changed itself"
            raise ExportError(f"{name} attends with {what}, so nothing says which tokens it sees.")
        window = self._windows[id(attention_mask)][1]
        assert window is not None
        self._check_window(name, layer, window, options.get("sliding_window"))
        head_dim = max(query.shape[-1], value.shape[-1])
        form = AttentionForm(
            module=name,
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=head_dim,
            value_dim=value.shape[-1],
            scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
            window=window,
            softcap=float(options.get("softcap") or 0.0),
            sinks=options.get("s_aux") is not None,
        )
        known = self.plan.attentions.setdefault(layer, form)
        if known != form:
            raise ExportError(f"{name} attends in one way in a prompt and in another in a step: {known}, {form}.")
        if query.shape[-1] != value.shape[-1]:
            self.plan.note(f"heads of {value.shape[-1]} elements are padded to {head_dim} in the cache")

    def _check_window(self, name: str, layer: int, window: int, given: int | None) -> None:
        """Hold the window of the mask to the one that the layer hands to kernels without masks."""
        if given is not None and given < self.plan.context_length and given != window:
            raise ExportError(
                f"{name} (layer {layer}) tells its attention of a window of {given}, and its mask has "
                f"{window or 'none'}. Which of the two it was trained with is not for edgeformer to guess."
            )


class Angles:
    """Cosines and sines on their way from a table to the function that turns by them.

    cosine, sine: the table, [C, R/2]; cos, sin: what was handed out; positions: of which rows, int64 [B, S].
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, name: str, form: RotaryForm, positions: Tensor, cosine: Tensor, sine: Callable[[bool], Tensor]):
        self.name = name
        self.form = form
        self.positions = positions
        self.cosine = cosine
        self.sine = sine

    def spread(self) -> tuple[Tensor, Tensor]:
        """Rows of the table in the layout of the original module."""
        layout = LAYOUTS[self.form.layout]
        return layout(self.cosine[self.positions]), layout(self.sine(False)[self.positions])


class PatchedCache(Cache):
    """Stands where transformers' code expects a cache, and keeps nothing itself."""

    def __init__(self, attention_patch: AttentionPatch):
        super().__init__(layers=[])
        self._routing = attention_patch

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Return what was given; the past is added inside the attention op."""
        return self._routing.update(key_states, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the new ones."""
        return self._routing.past_length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Where the new tokens start."""
        return self._routing.past_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Tokens in all, and where they start."""
        return self._routing.past_length + query_length, 0

    def __getattribute__(self, name: str) -> Any:
        if name in (
            "update_conv_state",
            "update_recurrent_state",
            "get_conv_state",
            "get_recurrent_state",
            "has_previous_state",
        ):
            raise ExportError(
                "it has layers that keep a recurrent or convolution state instead of keys and values, and the bundle "
                "has no tensors for such a state."
            )
        return super().__getattribute__(name)


def _widen(heads: Tensor, width: int) -> Tensor:
    missing = width - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads


_active: list[AttentionPatch] = []


def active() -> AttentionPatch:
    """The pass that is under way."""
    assert _active, "no forward pass of a rerouted module is under way"
    return _active[-1]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    return active().attend(module, query, key, value, attention_mask, scaling, dropout, options), None


def _mask(*, mask_function: MaskFunction, **options: Any) -> Tensor:
    # Some modules make a padding mask of ones where none is given; our op knows what is padding.
    return active().mask(mask_function)


@contextmanager
def registered() -> Iterator[None]:
    """Offer our attention to transformers under `NAME`, for the length of a `with` block."""
    registries: tuple[tuple[Any, Callable[..., Any]], ...] = (
        (AttentionInterface._global_mapping, _attend), (AttentionMaskInterface._global_mapping, _mask),
    )  # fmt: skip
    with ExitStack() as undo:
        for registry, function in registries:
            before = registry.get(NAME)
            registry[NAME] = function
            undo.callback(_restore, registry, before)
        yield


def _restore(registry: dict[str, Any], before: Any) -> None:
    if before is None:
        registry.pop(NAME, None)
    else:
        registry[NAME] = before


@contextmanager
def patched_attention(model: nn.Module, attention_patch: AttentionPatch) -> Iterator[None]:
    """Let `routing` serve the modules of `model`, for the length of a `with` block.

    Functions that turn queries and keys are replaced in the modeling files of the model's classes, and put back.
    """
    files = {inspect.getmodule(type(module)) for module in model.modules()}
    with ExitStack() as undo:
        undo.enter_context(registered())
        for file in files:
            functions = vars(file) if file is not None and file.__name__.startswith("transformers.models.") else {}
            for name, function in list(functions.items()):
                if name.startswith("apply_rotary") and inspect.isfunction(function):
                    setattr(file, name, _turning(function))
                    undo.callback(setattr, file, name, function)
        _active.append(attention_patch)
        undo.callback(_active.pop)
        yield


def _turning(function: Callable[..., Any]) -> Callable[..., Any]:
    def turn(*args: Any, **kwargs: Any) -> Any:
        return active().turn(function, args, kwargs)

    return turn
