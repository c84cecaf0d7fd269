"""An option: a field of a dataclass that carries its help, its range and its names on every surface.

top_p: float = option(1.0, "Keep the fewest tokens that reach this probability.", above=0, at_most=1, cli=True)
"""

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

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
        cli: whether commands that generate have it, `--top-p` for `top_p`.
        short: its other name there.
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
    cli: bool
    short: str
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
    cli: bool = False,
    short: str = "",
    metavar: str = "",
    api: bool | str = False,
    servers: str = "",
    api_limits: Mapping[str, float] | None = None,
    in_file: bool = True,
) -> _T:
    """Declare a field of a group of options; `Option` and `Range` have the meanings. api: True for the field's name."""
    allowed = Range(at_least=at_least, above=above, at_most=at_most, below=below, finite=finite, means=means)
    said = {"help": help, "more": more, "range": allowed, "cli": cli, "short": short, "metavar": metavar}
    said |= {"api": api, "servers": servers, "api_limits": api_limits or {}, "in_file": in_file}
    declared: _T = field(default=default, metadata=said)
    return declared


def options_of(group: Any) -> Iterator[Option]:
    """Yield the options of a dataclass whose fields are options; its `TITLE` is theirs."""
    for each in fields(group):
        said = dict(each.metadata)
        api = each.name if said["api"] is True else said["api"] or ""
        yield Option(name=each.name, type=each.type, default=each.default, title=group.TITLE, **said | {"api": api})
