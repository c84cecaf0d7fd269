"""An option: a field of a dataclass that carries its help, its values and its names on every surface.

top_p: float = option(1.0, "Keep the fewest tokens that reach this probability.", above=0, at_most=1, cli=True)
"""

import functools
import math
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from edgeformer.errors import shown

_T = TypeVar("_T")

OFF_AT_0 = (0, "off")
OFF_AT_1 = (1, "off")


@dataclass(kw_only=True, eq=False, repr=False)  # neither compared nor shown: less to compile at each start
class Range:
    """The numbers that an option takes; NaN is never one of them.

    Attributes:
        at_least, above: the smallest number, or the largest that is too small.
        at_most, below: the largest number, or the smallest that is too large.
        finite: whether infinity is refused.
        means: a number of the range with a meaning of its own, and the word for it.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    finite: bool = False
    means: tuple[float, str] | None = None

    def __contains__(self, value: float) -> bool:
        return (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and not (self.finite and math.isinf(value))
        )

    def __bool__(self) -> bool:
        return self.finite or any(each is not None for each in (self.at_least, self.above, self.at_most, self.below))

    def __str__(self) -> str:
        """Return the range in words, as errors and docs have it: `between 0 (off) and 1`."""
        least, above, most, below = map(self._word, (self.at_least, self.above, self.at_most, self.below))
        if least and most:
            return f"between {least} and {most}"
        if least and below:
            return f"{least} or larger, and below {below}"
        if above and most:
            return f"above {above} and at most {most}"
        if least:
            return f"{least} or larger" if "(" in least else f"at least {least}"
        text = f"above {above}" if above else "finite"
        return text if self.means is None else f"{text}; {self.means[0]} is {self.means[1]}"

    def _word(self, bound: float | None) -> str:
        if bound is None:
            return ""
        return f"{bound:,} ({self.means[1]})" if self.means and self.means[0] == bound else f"{bound:,}"


@dataclass(kw_only=True, eq=False, repr=False)  # neither compared nor shown: less to compile at each start
class Option:
    """The declaration of an option.

    Attributes:
        name, type, default: those of its field.
        title: of its group.
        help: what it does, in a sentence; the command line shows it.
        more: what else the reference says of it.
        range: the numbers that it takes, for one that is a number.
        choices: its values, where they are listed: those of a Literal, or others.
        unset: what is done where it is None, or "".
        cli: whether the command line has it, `--top-p` for `top_p`.
        short: its other name there.
        flag: its name there, where that is not the field's.
        flags: flags that stand for one value each: (flag, value, help), instead of an option that takes a value.
        metavar: how help shows its value; one that begins with `FILE|` may be a file that has the value.
        api: its field in requests to the server, or "".
        servers: letters of other servers that have that field, as `edgeformer.server.schema.fields` lists them.
        api_limits: of that field, narrower than the range, as pydantic's `Field` calls them.
        in_file: whether the field of this name in a generation_config.json is read.
    """

    name: str
    type: Any
    default: Any
    title: str
    help: str
    more: str
    range: Range
    choices: tuple[Any, ...]
    unset: str
    cli: bool
    short: str
    flag: str
    flags: tuple[tuple[str, Any, str], ...]
    metavar: str
    api: str
    api_limits: Mapping[str, float]
    servers: str
    in_file: bool

    @property
    def is_optional(self) -> bool:
        """Whether it may be None."""
        return NoneType in get_args(self.type)

    @property
    def value_type(self) -> Any:
        """Its type without None."""
        return functools.reduce(operator.or_, self._types)

    @property
    def _types(self) -> list[Any]:
        """The members of its type, without None."""
        is_union = isinstance(self.type, UnionType) or get_origin(self.type) is Union
        return [each for each in get_args(self.type) if each is not NoneType] if is_union else [self.type]

    def expected(self, value: Any) -> str:
        """Return what a value has to be, in words, where it is nothing that the option takes; else ""."""
        if value is None and self.is_optional:
            return ""
        if self.choices:
            fits = any(type(value) is type(each) and value == each for each in self.choices)
            words = f"one of {', '.join(map(str, self.choices))}"
        else:
            fits = any(_fits(value, kind) for kind in self._types) and (not self.range or value in self.range)
            words = str(self.range) if self.range else " or ".join(map(_words, self._types))
        return "" if fits else words + (", or None" if self.is_optional else "")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the type of an option."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (int, bool):
        return type(value) is origin
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, arguments[0]) for each in value)
    if issubclass(origin, Mapping):
        names, values = get_args(arguments[1]) or arguments[1:], value.values() if isinstance(value, Mapping) else ()
        return isinstance(value, Mapping) and all(any(_fits(each, name) for name in names) for each in values)
    if issubclass(origin, Collection) and origin is not str:  # arrays of numpy are no sequences
        return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return isinstance(value, origin)


def _words(kind: Any) -> str:
    """Return the name of a type in an error."""
    words = {bool: "True or False", int: "an integer", str: "a text", Path: "a Path"}
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in words:
        return words[origin]
    if origin is tuple:
        return "a tuple of texts"
    if not arguments:
        return f"a {kind.__name__}"
    return "a mapping of names to paths" if issubclass(origin, Mapping) else "a list"


def check_options(owner: Any, error: type[Exception]) -> None:
    """Raise an error that names the first field of a group of options that has a value of a wrong type or range."""
    for each in options_of(type(owner)):
        value = getattr(owner, each.name)
        if expected := each.expected(value):
            raise error(f"{each.name} is {shown(value)}; it must be {expected}.")


def option(
    default: _T,
    help: str,
    more: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    finite: bool = False,
    means: tuple[float, str] | None = None,
    choices: tuple[Any, ...] = (),
    unset: str = "",
    cli: bool = False,
    short: str = "",
    flag: str = "",
    flags: tuple[tuple[str, Any, str], ...] = (),
    metavar: str = "",
    api: bool | str = False,
    servers: str = "",
    api_limits: Mapping[str, float] | None = None,
    in_file: bool = True,
) -> _T:
    """Declare a field of a group of options; `Option` and `Range` have the meanings. api: True for the field's name."""
    allowed = Range(at_least=at_least, above=above, at_most=at_most, below=below, finite=finite, means=means)
    said = {"help": help, "more": more, "range": allowed, "cli": cli, "short": short, "metavar": metavar}
    said |= {"choices": choices, "unset": unset, "flag": flag, "flags": flags}
    said |= {"api": api, "servers": servers, "api_limits": api_limits or {}, "in_file": in_file}
    declared: _T
    if isinstance(default, dict):  # a dataclass takes no default that can be changed
        declared = field(default_factory=lambda: type(default)(default), metadata=said)
    else:
        declared = field(default=default, metadata=said)
    return declared


def options_of(group: Any) -> Iterator[Option]:
    """Yield the options of a dataclass whose fields are options; its `TITLE` is theirs."""
    for each in fields(group):
        said = dict(each.metadata)
        said["api"] = each.name if said["api"] is True else said["api"] or ""
        default = each.default if each.default_factory is MISSING else each.default_factory()
        said["choices"] = said["choices"] or _choices(each.type)
        yield Option(name=each.name, type=each.type, default=default, title=group.TITLE, **said)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, None left out; () for another type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    members = [each for each in get_args(kind) if each is not NoneType]
    return get_args(members[0]) if len(members) == 1 and get_origin(members[0]) is Literal else ()
