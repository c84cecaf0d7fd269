"""Frozen dataclasses to JSON and back, strictly.

One codec serves the model configuration and the bundle manifest. It reads the types that dataclass fields declare:
numbers, strings, booleans, `Literal`, `T | None`, `tuple[T, ...]`, `dict[str, T]`, nested dataclasses, and unions of
dataclasses told apart by a `kind` field, which one of them may lack. An unknown or absent field, or a value of another
type, is a `ConfigError` that gives the path of the field (`blocks[3].attention.head_dim`). Dataclasses validate
themselves in `__post_init__` with `check`. A dataclass may have a JSON form of its own: methods `to_json` and
`from_json`.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from edgeformer.errors import ConfigError, shown

T = TypeVar("T")

LARGEST = 2**53
"""Largest integer of a field: beyond it, other readers of JSON round."""

MOST_LAYERS = 1024
"""Layers of a model at most. The deepest that is known has 1,000 (arXiv 2203.00555), large ones about 130."""

LONGEST_VALUE = 200
"""Characters of a value in an error; more are cut."""


def check(condition: bool, owner: object, field: str, expected: str) -> None:
    """Raise a `ConfigError` with `field`, its value and the `expected` one, unless `condition` holds."""
    if not condition:
        raise FieldError(type(owner).__name__, field, getattr(owner, field), expected)


class FieldError(ConfigError):
    """A field of a dataclass has a value that it may not have. value: that one."""

    def __init__(self, owner: str, field: str, value: Any, expected: str):
        super().__init__(f"{owner}.{field} is {shown(value, LONGEST_VALUE)}; it must be {expected}.")
        self.value = value


def to_json(value: Any) -> Any:
    """Turn a tree of dataclasses into dicts, lists and scalars.

    Fields that hold None are left out; NaN and the infinities, which JSON lacks, become the strings "nan", "inf" and
    "-inf".
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def fields_to_json(value: Any) -> dict[str, Any]:
    """Return one dataclass field by field, even if it has a `to_json` of its own."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: to_json(item) for name, item in fields.items() if item is not None}


def from_json(kind: type[T], data: Any, path: str = "") -> T:
    """Return a `kind` built from the output of `to_json`; `path` is the prefix of fields in error messages.

    Raises ConfigError for an unknown or missing field, or a value of a wrong type.
    """
    return typing.cast(T, _decode(kind, data, path))


def repeated(runs: Any, name: str, path: str) -> list[Any]:
    """Return the items of `[{"repeat": 2, name: item}, …]` in order, each as often as it says; at most MOST_LAYERS.

    Raises ConfigError for data of another form, before anything is repeated.
    """
    _expect(isinstance(runs, list), runs, path, f"a list of {{repeat: number, {name}: …}}")
    for index, run in enumerate(runs):
        fits = isinstance(run, dict) and type(run.get("repeat")) is int and run["repeat"] > 0 and name in run
        _expect(fits, run, f"{path}[{index}]", f"of the form {{repeat: number, {name}: …}}")
    count = sum(run["repeat"] for run in runs)
    _expect(count <= MOST_LAYERS, count, f"the number of layers in {path}", f"{MOST_LAYERS:,} at most")
    return [run[name] for run in runs for _ in range(run["repeat"])]


def fields_from_json(kind: type[T], data: Any, path: str = "") -> T:
    """Return a `kind` built from the output of `fields_to_json`, even if it has a `from_json` of its own."""
    return typing.cast(T, _decode_dataclass(kind, data, path))


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "from_json"):
        return kind.from_json(data, path)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(arguments, data, path)
    if origin is typing.Literal:
        _expect(
            any(type(data) is type(each) and data == each for each in arguments),
            data,
            path,
            "one of " + ", ".join(map(repr, arguments)),
        )
        return data
    if origin is tuple:
        _expect(isinstance(data, list), data, path, "a list")
        return tuple(_decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(data))
    if origin is dict:
        _expect(isinstance(data, dict), data, path, "an object")
        return {key: _decode(arguments[1], item, f"{path}.{key}") for key, item in data.items()}
    if kind is Any:
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(type(data) is kind, data, path, f"of type {getattr(kind, '__name__', kind)}")
    if kind is int:
        _expect(abs(data) <= LARGEST, data, path, f"between -{LARGEST:,} and {LARGEST:,}")
    elif kind is float:
        _expect(math.isfinite(data), data, path, "a finite number")
    return data


def _decode_dataclass(kind: Any, data: Any, path: str) -> Any:
    _expect(isinstance(data, dict), data, path, f"an object with the fields of {kind.__name__}")
    fields = _fields_of(kind)
    for name in data.keys() - fields.keys():
        name = shown(name, LONGEST_VALUE)[1:-1] if len(name) > LONGEST_VALUE else name
        raise ConfigError(f"{_join(path, name)} is not a field of {kind.__name__}; it has {', '.join(fields)}.")
    values = {}
    for name, (hint, needed) in fields.items():
        if name in data:
            values[name] = _decode(hint, data[name], _join(path, name))
        elif type(None) in typing.get_args(hint):
            values[name] = None
        elif needed:
            raise ConfigError(f"{_join(path, name)} is missing; {kind.__name__} requires it.")
    return kind(**values)


@functools.cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a dataclass: the type of each, and whether it has no default."""
    hints, missing = typing.get_type_hints(kind), dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    }


def _decode_union(members: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in members:
        return None
    choices = [member for member in members if member is not type(None)]
    if len(choices) == 1:
        return _decode(choices[0], data, path)
    if not all(dataclasses.is_dataclass(member) for member in choices):
        for member in choices:
            if type(data) is member:
                return data
        form = tuple if isinstance(data, list) else typing.Literal
        for member in choices:
            if typing.get_origin(member) is form:
                return _decode(member, data, path)
        _expect(False, data, path, "one of the types " + ", ".join(member.__name__ for member in choices))
    return _decode(_chosen({_kind_of(member): member for member in choices}, data, path), data, path)


def kind_from_json(kinds: Mapping[str, type[T]], data: Any, path: str = "") -> T:
    """Return a dataclass built from the output of `to_json`, of the kind that its field `kind` says.

    Raises ConfigError for another kind, and as `from_json`.
    """
    return typing.cast(T, _decode_dataclass(_chosen(kinds, data, path), data, path))


def _chosen(kinds: Mapping[Any, Any], data: Any, path: str) -> Any:
    """Return the class of the kind that data says. Raises ConfigError for another kind."""
    kind = data.get("kind") if isinstance(data, dict) else None
    known = isinstance(data, dict) and (kind is None or isinstance(kind, str)) and kind in kinds
    _expect(known, data, path, f"an object of kind {sorted(name for name in kinds if name is not None)}")
    return kinds[kind]


def _kind_of(member: Any) -> str | None:
    """The value of the field `kind` that tells a dataclass from others; None for a dataclass without that field."""
    fields = _fields_of(member)
    return typing.get_args(fields["kind"][0])[0] if "kind" in fields else None


def _expect(condition: bool, data: Any, path: str, expected: str) -> None:
    if not condition:
        value = shown(data, LONGEST_VALUE)
        raise ConfigError(f"{path or 'the document'} is {value}; it must be {expected}.")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
