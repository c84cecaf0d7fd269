"""The description of a model family, and the strict reader of config.json that families use."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig
from edgeformer.documents.schema import MOST_LAYERS
from edgeformer.errors import ConfigError, shown
from edgeformer.families._neutral import is_neutral

if TYPE_CHECKING:
    from edgeformer.families._mtp import MTPTables

_REQUIRED = object()

COUNTS = {
    "layers": MOST_LAYERS,
    "n_layer": MOST_LAYERS,
    "head": 1 << 16,
    "expert": 1 << 16,
    "label": 1 << 20,
    "": 1 << 53,
}
"""Largest number in a field of config.json by a part of its name; lists of so many entries are made of some."""

Computed = Literal["positions", "zeros", "masking_value", "causal_mask", "rotary_frequencies", "sinusoids"]
"""Kind of a stored tensor that the config determines; `edgeformer.checkpoints.computed_tensors` compares it."""


class Fields:
    """A config.json that is read field by field; `finish` raises an error if a field was not read."""

    def __init__(self, data: dict[str, Any], defaults: Mapping[str, Any] | None = None):
        for name, value in data.items():
            most = next(most for part, most in COUNTS.items() if part in name)
            if isinstance(value, int) and abs(value) > most:
                raise ConfigError(f"config.json has {name} = {value:,}; it must be {most:,} at most.")
        self._data = {**(defaults or {}), **data}
        self._unread = {name for name in data if not is_neutral(name, self._data)}

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field. If it is null, or absent and not in `Family.defaults`, return `default`.

        Raises ConfigError if there is neither a value nor a default.
        """
        self._unread.discard(name)
        value = self._data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(f"config.json has no {name}; a {self._data['model_type']} model requires it.")
        return default

    def ignore(self, *names: str) -> None:
        """Mark fields as read that have no effect in this family."""
        self._unread.difference_update(names)

    def choice(self, name: str, choices: Mapping[Any, Any], default: Any = _REQUIRED) -> Any:
        """Return the entry of `choices` for the field's value. Raises ConfigError for another value."""
        value = self.take(name, default)
        if value not in list(choices):  # a list, because values of JSON need not be hashable
            known = ", ".join(map(str, choices))
            raise ConfigError(
                f"config.json has {name} = {shown(value, 200)}, which is not supported here; supported: {known}."
            )
        return choices[value]

    def finish(self) -> None:
        """Raise a ConfigError if a field was not read, because it may change what the model computes."""
        if self._unread:
            listed = ", ".join(f"{name} = {shown(self._data[name], 200)}" for name in sorted(self._unread))
            raise ConfigError(
                f"config.json has fields that the {self._data['model_type']} family does not know: {listed}. "
                "They may change what the model computes, so nothing was exported."
            )


@dataclass(frozen=True)
class Packed:
    """One of several parameters whose rows a checkpoint stores in one tensor.

    Attributes:
        module: the checkpoint's module.
        part: index of the parameter in the tensor.
        layout: order of the rows. `rows`: parameter after parameter; `groups`: per kv head its rows of parameter after
            parameter; `heads`: the same per query head; `key_heads`: the same per key head of linear attention, where
            the rows of `query_key_value` are those of its query, its key, its values; `experts`: per expert, parameter
            after parameter; `alternating`: per expert, the first row of each parameter, then the second row of each …;
            `shared_last`: one parameter of latent attention, of whose heads the tensor has the shared part last.
        shards: the tensor is a concatenation of this many equal tensors, each of that layout.
    """

    module: str
    part: int
    layout: Literal["rows", "groups", "heads", "key_heads", "experts", "alternating", "shared_last"] = "rows"
    shards: int = 1

    @property
    def axis(self) -> int:
        """Return the axis of the rows; those of stacked experts follow the expert's number."""
        return 1 if self.layout in ("experts", "alternating") else 0


def packed_qkv(module: str, layout: Literal["rows", "groups"] = "rows") -> dict[str, Packed]:
    """Return the tensor names of query, key and value in one tensor."""
    parts = enumerate(("query", "key", "value"))
    return {f"blocks.*.attention.{name}": Packed(module, part, layout) for part, name in parts}


def packed_gate_up(module: str) -> dict[str, Packed]:
    """Return the tensor names of the gate and up projections in one tensor, the gate first."""
    return {f"blocks.*.feed_forward.{name}": Packed(module, part) for part, name in enumerate(("gate", "up"))}


@dataclass(frozen=True)
class Place:
    """Where a checkpoint stores one parameter: its tensor, whether that is transposed, and the part of it."""

    tensor: str
    transposed: bool
    packed: Packed | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to read the config.json and the checkpoints of one `model_type`.

    Attributes:
        summary: one line for people about the supported models.
        read_config: returns the ModelConfig of config.json for a requested context length (None: all positions).
        tensors: the checkpoint's module, or a `Packed`, by edgeformer's module or parameter. The last part of a
            parameter's name (weight, bias) is the same in both. `*` is the number of the block; `#` in the
            checkpoint's name: it has one tensor per row, or per expert; `a|b`: the first of these names that it has.
            Of a tuple, too, the first is meant whose tensor the checkpoint has.
        defaults: defaults of transformers' config class for absent fields, where `read_config` gives none. A field
            that is null is not absent.
        transposed: patterns of the checkpoint's modules whose weights are stored [in, out], of experts [X, in, out].
        optional_prefix: prefix of all names that some checkpoints lack.
        ignored_tensors: patterns of names of tensors that the model does not use, such as heads of other tasks.
        computed_tensors: what a tensor is that the config determines, by the pattern of its name (such as tables in old
            checkpoints). It is not read, but compared with what the config determines.
        stored_positions: tensor of the checkpoint that replaces sinusoidal positions where it is stored, by stack.
        zero_if_absent: names of tensors that a checkpoint may lack, and that are zero then.
        encoder_class: transformers' class of the encoder alone, of families of encoder-decoders that have one.
        nested: whether the checkpoint holds other models beside this one, which has a prefix there (`_nested.py`).
        heads: modules of a head in such a checkpoint, and what the family calls them.
        sees: whether its tensors of other modalities are read, too, by their names without `model.`.
        reads_is_causal: whether is_causal = false in config.json lets the tokens of a decoder see those behind them,
            too, as embedders have it.
        mtp: where its checkpoints store a layer that drafts tokens; None for families without such layers.
        copies: tensors of that layer that must be copies of a parameter of the model, by their names.
    """

    summary: str
    read_config: Callable[[Fields, int | None], ModelConfig]
    tensors: Mapping[str, str | Packed | tuple[str | Packed, ...]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    optional_prefix: str = ""
    ignored_tensors: tuple[str, ...] = ()
    computed_tensors: Mapping[str, Computed] = field(default_factory=dict)
    stored_positions: Mapping[str, str] = field(default_factory=dict)
    zero_if_absent: tuple[str, ...] = ()
    encoder_class: str | None = None
    nested: bool = False
    heads: Mapping[str, str] = field(default_factory=dict)
    sees: bool = False
    reads_is_causal: bool = False
    mtp: "MTPTables | None" = None
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_decoder(self) -> bool:
        """Whether models of the family are causal language models, by the type that `read_config` returns.

        Some read the blocks of an encoder from the same fields.
        """
        read = get_type_hints(self.read_config)["return"]
        return read is DecoderConfig or get_args(read) == (DecoderConfig, EncoderConfig)

    def encoder_alone(self) -> "Family":
        """Return how to read the encoder of an encoder-decoder, also from a checkpoint that has the decoder, too."""
        half = "encoder."
        return replace(
            self,
            tensors={ours[len(half) :]: theirs for ours, theirs in self.tensors.items() if ours.startswith(half)},
            ignored_tensors=(*self.ignored_tensors, r"decoder\..*", r"lm_head\.weight"),
        )

    def both_halves(self) -> "Family":
        """Return how to read a model of two halves, of which the family may also read one alone."""
        return replace(self, ignored_tensors=())

    def without_head(self, instead: Mapping[str, str] = MappingProxyType({})) -> "Family":
        """Return how to read a decoder's states, also from a checkpoint whose names lack the prefix of its body.

        instead: tensors of another head.
        """
        head = self.tensors.get("head", "lm_head")
        body = {ours: theirs for ours, theirs in self.tensors.items() if ours != "head"}
        first = {name.partition(".")[0] for theirs in body.values() for name in _names(theirs)}
        return replace(
            self,
            tensors={**body, **instead},
            optional_prefix=self.optional_prefix or (f"{first.pop()}." if len(first) == 1 else ""),
            ignored_tensors=(*self.ignored_tensors, *(rf"{re.escape(name)}\.(weight|bias)" for name in _names(head))),
        )

    def places(self, parameters: Iterable[str], stored: Container[str] = ()) -> dict[str, Place]:
        """Return where the checkpoint stores each parameter; stored: names of all tensors of the checkpoint."""
        return {name: self._place(name, stored) for name in parameters}

    def other_names(self, parameter: str, stored: Container[str]) -> list[str]:
        """Return the tensors of the checkpoint that have another of a parameter's names than the one that is read."""
        options, suffix = self._options(parameter)
        found = [path + suffix for path, _ in options if path + suffix in stored]
        return found[1:]

    def _options(self, parameter: str) -> tuple[list[tuple[str, Packed | None]], str]:
        """Return the names that a parameter may have in a checkpoint, without their common last part, and that part."""
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", parameter)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", parameter)
        module, _, last = pattern.rpartition(".")
        theirs = self.tensors[pattern] if pattern in self.tensors else self.tensors[module]
        suffix = "" if pattern in self.tensors else f".{last}"
        options = [
            (name, option if isinstance(option, Packed) else None)
            for option in (theirs if isinstance(theirs, tuple) else (theirs,))
            for name in _names(option)
        ]
        for number in numbers:
            options = [(path.replace("*", number, 1), packed) for path, packed in options]
        return options, suffix

    def _place(self, parameter: str, stored: Container[str]) -> Place:
        options, suffix = self._options(parameter)
        known = (option for option in options if (option[0] + suffix).replace("#", "0") in stored)
        path, packed = next(known, options[0])
        transposed = parameter.endswith(".weight") and any(fnmatchcase(path, module) for module in self.transposed)
        return Place(path + suffix, transposed, packed)

    def computed(self, tensor: str) -> Computed | None:
        """Return what a tensor of the checkpoint is if the config determines it; None for another one."""
        kinds = (kind for pattern, kind in self.computed_tensors.items() if re.fullmatch(pattern, tensor))
        return next(kinds, None)

    def ignores(self, tensor: str) -> bool:
        """Return whether a tensor of the checkpoint is known to be unused."""
        return any(re.fullmatch(pattern, tensor) for pattern in self.ignored_tensors)


def _names(theirs: str | Packed | tuple[str | Packed, ...]) -> list[str]:
    """Return all names of the checkpoint in an entry of `Family.tensors`."""
    options = theirs if isinstance(theirs, tuple) else (theirs,)
    modules = (option.module if isinstance(option, Packed) else option for option in options)
    return [name for module in modules for name in module.split("|")]
