"""Options of commands from the declarations of `edgeformer.documents.option`: names, values and help of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import click

from edgeformer.cli._options import option as cli_option
from edgeformer.documents.option import Option

_Function = TypeVar("_Function", bound=Callable[..., Any])

Kinds = Mapping[Any, dict[str, Any]]
"""Settings of click by the types of options that need other ones than numbers, flags, choices and texts do."""


class Number(click.ParamType[float]):
    """A number in the range of an option."""

    def __init__(self, option: Option) -> None:
        self.name = "N" if option.value_type is int else "FLOAT"
        self._kind: click.ParamType[Any] = click.INT if option.value_type is int else click.FLOAT
        self._range = option.range

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = self._kind.convert(value, param, ctx)
        if self._range and number not in self._range:
            self.fail(f"{number} is given; it must be {self._range}.", param, ctx)
        return number


def declare(
    options: Iterable[Option], kinds: Kinds, topics: Mapping[str, str] | None = None, note: str = ""
) -> Callable[[_Function], _Function]:
    """Return a decorator that declares the options that the command line has.

    topics: of help, for groups of options whose title is not that of their topic. note: the end of the help of each.
    """
    titles = topics or {}
    params = [
        cli_option(*names, topic=titles.get(option.title, option.title), **settings)
        for option in options
        if option.cli
        for names, settings in _params(option, kinds, note)
    ]

    def decorate(function: _Function) -> _Function:
        for param in reversed(params):
            function = param(function)
        return function

    return decorate


def flag_of(option: Option) -> str:
    """Return the name of an option on the command line."""
    return option.flag or f"--{option.name.replace('_', '-')}"


def help_of(option: Option, kinds: Kinds, note: str = "") -> str:
    """Return the help of an option: what it does, and its default."""
    return " ".join(filter(None, _sentences(option, kinds, note)))


def explicit_values(options: Iterable[Option], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options that were given, out of the parameters of a command.

    Raises UsageError for two flags of one option.
    """
    values: dict[str, Any] = {}
    for option in options:
        flags = {flag: value for flag, value, _ in option.flags if params[flag[2:].replace("-", "_")]}
        if len(flags) > 1:
            raise click.UsageError(f"{' and '.join(flags)} exclude each other.")
        if flags or params.get(option.name) not in (None, ()):
            values[option.name] = next(iter(flags.values())) if flags else params[option.name]
    return values


def _params(option: Option, kinds: Kinds, note: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the names and the settings of click for an option, or for each of its flags."""
    if option.flags:
        yield from (((flag,), {"is_flag": True, "help": text}) for flag, _, text in option.flags)
        return
    flag, kind = flag_of(option), option.value_type
    settings: dict[str, Any] = {"help": help_of(option, kinds, note)} | kinds.get(kind, {})
    if kind is bool:
        settings["default"] = None
        if option.is_optional:
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        else:
            settings["is_flag"] = True
    elif kind in (int, float):
        settings["type"] = Number(option)
    elif option.choices and kind not in kinds:
        settings["type"] = click.Choice(option.choices)
    if option.metavar:
        settings["metavar"] = option.metavar
    yield tuple(filter(None, (flag, option.short, option.name))), settings


def _sentences(option: Option, kinds: Kinds, note: str) -> Iterator[str]:
    """Yield the parts of an option's help."""
    several = kinds.get(option.value_type, {}).get("multiple", False)
    yield f"{option.help[:-1]}; may be given several times." if several else option.help
    yield note
    says_itself = option.range.means is not None and option.range.means[0] == option.default
    default = option.unset or (option.default if not says_itself and option.value_type is not bool else "")
    if default and isinstance(default, str | int | float):
        yield f"[default: {default}]"
