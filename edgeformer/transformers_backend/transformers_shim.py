"""All that edgeformer patches in transformers, or uses of it beyond its public interface.

The file was checked with transformers 5.23 and 5.24: older versions are refused, and in newer ones `moved_internals`
looks for every name and parameter that is used here. Patches last for the length of a `with` block. Attention is an
entry in the registries of transformers, and functions named `apply_rotary*` are replaced in the modeling files of one
model.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from threading import get_ident
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from edgeformer.errors import ExportError, MissingDependencyError, require

OLDEST, CHECKED = (5, 23), (5, 24)
"""The versions of transformers, major and minor, that this file was checked with: the oldest that is taken, and the
newest."""

CACHE_ARGUMENTS = ("cache", "past_key_values")
"""Names of the argument of a model's forward that takes the cache: since 5.24, and before."""

ATTENTION_NAME = "edgeformer"
"""The name of our entry in the registries of attention and of masks: a model's `attn_implementation`."""

INTERNALS: dict[str, tuple[str, ...]] = {
    "cache_utils:Cache.update": ("key_states", "value_states", "layer_idx"),
    "cache_utils:Cache.get_seq_length": ("layer_idx",),
    "cache_utils:Cache.get_query_offset": ("layer_idx",),
    "cache_utils:Cache.get_mask_sizes": ("query_length", "layer_idx"),
    "cache_utils:Cache.has_previous_state": ("layer_idx", "state_idx"),
    "cache_utils:Cache.get_conv_state": ("layer_idx", "state_idx"),
    "cache_utils:Cache.update_conv_state": ("conv_states", "layer_idx", "state_idx"),
    "cache_utils:Cache.get_recurrent_state": ("layer_idx", "state_idx"),
    "cache_utils:Cache.update_recurrent_state": ("recurrent_states", "layer_idx", "state_idx"),
    "cache_utils:Cache.update_indexer": ("indexer_key_states", "layer_idx"),
    "models.qwen3_next.modeling_qwen3_next:causal_conv1d_fn": ("hidden_states", "weight", "bias", "activation"),
    "models.qwen3_next.modeling_qwen3_next:torch_chunk_gated_delta_rule": (
        "query", "key", "value", "g", "beta", "use_qk_l2norm_in_kernel",
    ),
    "models.bamba.modeling_bamba:mamba2_chunk_scan": (
        "hidden_states", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus", "dt_limit",
    ),
    "modeling_utils:AttentionInterface._global_mapping": (),
    "masking_utils:AttentionMaskInterface._global_mapping": (),
    "masking_utils:eager_mask": ("mask_function",),
    "models.llama.modeling_llama:apply_rotary_pos_emb": ("q", "k", "cos", "sin"),
    "models.llama.modeling_llama:eager_attention_forward": (
        "module", "query", "key", "value", "attention_mask", "scaling", "dropout",
    ),
    "models.llama.modeling_llama:LlamaRotaryEmbedding.forward": ("position_ids",),
    "models.llama.modeling_llama:LlamaForCausalLM.forward": ("input_ids", "|".join(CACHE_ARGUMENTS), "use_cache"),
    "integrations.moe:use_experts_implementation": (
        "is_concatenated", "is_transposed", "has_bias", "has_gate", "has_post_expert_norm",
    ),
    "models.mixtral.modeling_mixtral:MixtralExperts.forward": ("hidden_states", "top_k_index", "top_k_weights"),
    "modeling_utils:PreTrainedModel.warn_if_padding_and_no_attention_mask": (),
    "modeling_utils:PreTrainedModel._keys_to_ignore_on_load_unexpected": (),
    "modeling_utils:PreTrainedModel.base_model_prefix": (),
    "models.auto.configuration_auto:CONFIG_MAPPING": (),
    "models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING": (),
    "conversion_mapping:get_model_conversion_mapping": ("model",),
    "core_model_loading:WeightConverter.convert": ("layer_name", "model", "config"),
    "core_model_loading:WeightConverter.add_tensor": ("target_key", "source_key", "source_pattern", "future"),
    "core_model_loading:MergeModulelist": ("dim",),
    "core_model_loading:dot_natural_key": (),
    "core_model_loading:WeightRenaming": (),
    "core_model_loading:rename_source_key": (
        "source_key", "weight_renamings", "weight_converters", "base_model_prefix", "meta_state_dict",
    ),
}  # fmt: skip
"""Every name of transformers that is used beyond its public interface, and the parameters that are relied on; of `a|b`
either one."""


def cache_argument(forward: Callable[..., Any]) -> str | None:
    """Return the name of the argument of a model's forward that takes its cache; None where it keeps none."""
    arguments = inspect.signature(forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in arguments), None)


def moved_internals() -> list[str]:
    """Return the entries of `INTERNALS` that the installed transformers lacks, or whose parameters have changed."""
    moved = []
    for path, parameters in INTERNALS.items():
        try:
            found = resolve_name(f"transformers.{path}")
        except (ImportError, AttributeError):
            moved.append(path)
            continue
        known = set(inspect.signature(found).parameters) if parameters else set()
        if any(known.isdisjoint(name.split("|")) for name in parameters):
            moved.append(f"{path}({', '.join(parameters)})")
    return moved


def check_version(version: str) -> None:
    """Raise MissingDependencyError for a version of transformers that this file cannot patch."""
    oldest, checked = (".".join(map(str, each)) for each in (OLDEST, CHECKED))
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        raise MissingDependencyError(
            f"--backend transformers needs transformers {oldest} or newer, and {version} is installed. Install one "
            "with: pip install 'edgeformer[transformers]'"
        )
    moved = moved_internals() if numbers > CHECKED else []
    if moved:
        raise MissingDependencyError(
            f"--backend transformers was checked with transformers {checked}; {version} is installed, where these "
            f"internals have moved or changed: {', '.join(moved)}. Install transformers {checked}, or report it."
        )


transformers = require("transformers", "transformers")
check_version(transformers.__version__)

# Only now, since the message above names what an unknown version lacks.
from transformers.cache_utils import Cache  # noqa: E402
from transformers.conversion_mapping import get_model_conversion_mapping  # noqa: E402
from transformers.core_model_loading import (  # noqa: E402
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.masking_utils import AttentionMaskInterface  # noqa: E402
from transformers.modeling_utils import AttentionInterface, PreTrainedModel  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: E402

__all__ = [
    "CONFIG_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MergeModulelist",
    "WeightConverter",
    "WeightRenaming",
    "dot_natural_key",
    "get_model_conversion_mapping",
    "rename_source_key",
]


@contextmanager
def registered_attention(attend: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[None]:
    """Register an attention function and a mask function as `ATTENTION_NAME`, for the length of a `with` block."""
    AttentionInterface._global_mapping[ATTENTION_NAME] = attend
    AttentionMaskInterface._global_mapping[ATTENTION_NAME] = mask
    try:
        yield
    finally:
        del AttentionInterface._global_mapping[ATTENTION_NAME], AttentionMaskInterface._global_mapping[ATTENTION_NAME]


@contextmanager
def replaced_functions(
    model: nn.Module, replacement: Callable[[str, Callable[..., Any]], Callable[..., Any] | None]
) -> Iterator[None]:
    """Replace functions in the modeling files of `model`'s classes by what `replacement(name, function)` returns.

    A function stays where that is None. The modeling files are shared by all threads, so that a replacement must do
    what the original does where it is called for another model.
    """
    files = {inspect.getmodule(type(module)) for module in model.modules()}
    with ExitStack() as undo:
        for file in files:
            functions = vars(file) if file is not None and file.__name__.startswith("transformers.models.") else {}
            for name, function in list(functions.items()):
                new = replacement(name, function) if inspect.isfunction(function) else None
                if new is not None:
                    setattr(file, name, new)
                    undo.callback(setattr, file, name, function)
        yield


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Move every parameter to the meta device when a module of this thread registers it.

    torch has one registration hook for the process, so that this one lets the parameters of other threads pass.
    """
    thread = get_ident()

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if get_ident() != thread or parameter.is_meta:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def experts_options(module: nn.Module) -> dict[str, bool] | None:
    """Return the options that the experts of a module give to transformers' experts interface, or None without it."""
    options = {name: getattr(module, name, None) for name in INTERNALS["integrations.moe:use_experts_implementation"]}
    return None if None in options.values() else {name: bool(value) for name, value in options.items()}


def run_experts_eagerly(module: Any) -> None:
    """Let a module of experts run the forward of its own class, and none that its config chooses."""
    module.config._experts_implementation = "eager"


@contextmanager
def quietly() -> Iterator[None]:
    """Let transformers print errors only: it warns of slow kernels and odd configs, which say nothing of an export."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def silence_padding_warning(model: nn.Module) -> None:
    """Turn off a check for padding that reads token ids, which neither the meta device nor a trace can."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = lambda *args: None  # type: ignore[method-assign]


class Pass(Protocol):
    """A forward pass, as its cache tells it what layers do."""

    def update_cache(self, key: Tensor, value: Tensor, layer: int) -> Any:
        """Take new keys and values [B, K, S, D] of a layer."""

    def past_length(self) -> int:
        """Return the number of tokens before the new ones; it is symbolic in a trace."""

    def update_conv_state(self, x: Tensor, layer: int, state_idx: int = 0, **kwargs: object) -> Tensor:
        """Take new inputs of a convolution."""

    def get_recurrent_state(self, layer: int) -> None:
        """Take notice of the layer that scans next."""

    def update_recurrent_state(self, layer: int) -> None:
        """Take notice that it has."""


class PatchedCache(Cache):
    """A cache that stores nothing: it reports what layers do to a forward pass, and the past is added in our ops.

    It has no states of convolutions and recurrences, so that layers run their code for prompts in every pass.
    """

    def __init__(self, forward_pass: Pass):
        super().__init__(layers=[])
        self._pass = forward_pass

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object) -> Any:
        """Report new keys and values, and return them."""
        return self._pass.update_cache(key_states, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens are before the new ones."""
        return self._pass.past_length()

    get_query_offset = get_seq_length  # the position of the first new token

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return how many keys there are, and the position of the first."""
        return self._pass.past_length() + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Return that there is no state."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Return that there is no state."""

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object) -> Tensor:
        """Report new inputs of a convolution [B, C, S], and return them."""
        return self._pass.update_conv_state(conv_states, layer_idx, state_idx=state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Report that a layer scans next, and return that there is no state."""
        self._pass.get_recurrent_state(layer_idx)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Report that a layer has scanned, and return its state."""
        self._pass.update_recurrent_state(layer_idx)
        return recurrent_states

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Refuse to keep an index of keys."""
        raise ExportError(
            f"layer {layer_idx} chooses the keys that it attends to by an index of its own (sparse attention), which "
            "neither the bundle's cache nor the attention op has."
        )


def ignored_tensors(model: Any) -> list[str]:
    """Return patterns of tensor names that transformers skips when it loads a checkpoint."""
    return [*(model._keys_to_ignore_on_load_unexpected or []), r"(^|\.)(position_ids|rotary_emb\.inv_freq)$"]
