"""What a family is, and the strict reader that its config function works with."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from edgeformer.config import ModelConfig
from edgeformer.errors import ConfigError

# How a model is to be asked for text, which older config.json files hold beside what the model is.
GENERATION_FIELDS = (
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "early_stopping", "forced_bos_token_id",
    "forced_decoder_ids", "forced_eos_token_id", "lang_to_id", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "min_new_tokens", "no_repeat_ngram_size", "no_timestamps_token_id", "num_beams", "repetition_penalty",
    "suppress_tokens", "task_specific_params", "task_to_id",
)  # fmt: skip

# Fields of any config.json that have no effect on what the model computes when it runs.
WITHOUT_EFFECT = {
    *GENERATION_FIELDS,
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "eos_token_id", "gradient_checkpointing", "id2label", "initializer_range",
    "label2id", "model_type", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "return_dict", "tokenizer_class", "torch_dtype", "transformers_version",
    "transformers.js_config", "use_cache",
}  # fmt: skip

_REQUIRED = object()


class Fields:
    """A config.json that is read field by field and, in the end, must have been read whole."""

    def __init__(self, data: dict[str, Any], defaults: Mapping[str, Any] | None = None):
        self._data = {**(defaults or {}), **data}
        self._unread = set(data) - WITHOUT_EFFECT

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field; where it is null, or absent and not in `Family.defaults`, `default`."""
        self._unread.discard(name)
        value = self._data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(f"config.json has no {name}; a {self._data['model_type']} model requires it.")
        return default

    def ignore(self, *names: str) -> None:
        """Mark fields that this family knows to have no effect."""
        self._unread.difference_update(names)

    def choice(self, name: str, choices: Mapping[Any, Any], default: Any = _REQUIRED) -> Any:
        """Return what `choices` holds for the field's value."""
        value = self.take(name, default)
        if value not in list(choices):  # a list, because values of JSON need not be hashable
            known = ", ".join(map(str, choices))
            raise ConfigError(f"config.json has {name} = {value!r}, which is not supported here; supported: {known}.")
        return choices[value]

    def finish(self) -> None:
        """Raise a ConfigError if a field was left unread: it might change what the model computes."""
        if self._unread:
            listed = ", ".join(f"{name} = {self._data[name]!r}" for name in sorted(self._unread))
            raise ConfigError(
                f"config.json has fields that the {self._data['model_type']} family does not know: {listed}. "
                "They may change what the model computes, so nothing was exported."
            )


@dataclass(frozen=True)
class Packed:
    """One of several parameters whose rows a checkpoint keeps in one tensor.

    layout: `rows` part after part; `groups` for each key-value head its query heads, its key head, its value head.
    shards: into how many equal tensors, one after the other, the rows were once divided.
    """

    module: str
    part: int
    layout: Literal["rows", "groups"] = "rows"
    shards: int = 1


def packed_qkv(module: str, layout: Literal["rows", "groups"] = "rows") -> dict[str, Packed]:
    """Table entries of query, key and value in one tensor."""
    parts = enumerate(("query", "key", "value"))
    return {f"blocks.*.attention.{name}": Packed(module, part, layout) for part, name in parts}


def packed_gate_up(module: str) -> dict[str, Packed]:
    """Table entries of the two projections into a gated feed-forward, the gate first."""
    return {f"blocks.*.feed_forward.{name}": Packed(module, part) for part, name in enumerate(("gate", "up"))}


@dataclass(frozen=True)
class Place:
    """Where a checkpoint keeps one parameter: its tensor, which may be transposed, and the part of it."""

    tensor: str
    transposed: bool
    packed: Packed | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """How checkpoints of one `model_type` are read.

    summary: one line for people, what is read. read_config: from the fields of config.json and a wished context length
    (None: all there is) to a ModelConfig. defaults: what transformers' config class has for fields that config.json
    lacks, where `read_config` doesn't say; a field that is null lacks nothing. tensors: our module (or one parameter of
    it) → the checkpoint's module, `*` for the block's number, or a `Packed`; parameters keep their last name. `#` in a
    name of theirs: one tensor for each row of ours; `a|b`: the one of these names that the checkpoint has. transposed:
    patterns of their modules that store weights [in, out]. optional_prefix: what some checkpoints leave out before
    every name. ignored_tensors: patterns of tensor names that carry nothing (tables that old checkpoints stored).
    zero_if_absent: names of tensors that a checkpoint may lack, and that are zero then.
    """

    summary: str
    read_config: Callable[[Fields, int | None], ModelConfig]
    tensors: Mapping[str, str | Packed]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    optional_prefix: str = ""
    ignored_tensors: tuple[str, ...] = ()
    zero_if_absent: tuple[str, ...] = ()

    def places(self, parameters: Iterable[str], stored: Container[str] = ()) -> dict[str, Place]:
        """Where each parameter of our module is to be found; stored: the names of all tensors that there are."""
        return {name: self._place(name, stored) for name in parameters}

    def _place(self, parameter: str, stored: Container[str]) -> Place:
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", parameter)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", parameter)
        module, _, last = pattern.rpartition(".")
        theirs = self.tensors[pattern] if pattern in self.tensors else self.tensors[module]
        suffix = "" if pattern in self.tensors else f".{last}"
        packed = theirs if isinstance(theirs, Packed) else None
        paths = (theirs.module if isinstance(theirs, Packed) else theirs).split("|")
        for number in numbers:
            paths = [path.replace("*", number, 1) for path in paths]
        path = next((path for path in paths if (path + suffix).replace("#", "0") in stored), paths[0])
        transposed = last == "weight" and any(fnmatchcase(path, module) for module in self.transposed)
        return Place(path + suffix, transposed, packed)

    def ignores(self, tensor: str) -> bool:
        """Whether `tensor`, found in a checkpoint, is known to carry nothing."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.ignored_tensors)
