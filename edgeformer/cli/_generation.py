"""Options of commands that generate text, from the declarations of `edgeformer.options.generation`."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from edgeformer.cli._options import COMMON, ENCODER_DECODERS, OUTPUT
from edgeformer.cli._options import option as cli_option
from edgeformer.options.generation import (
    OPTIONS,
    BeamOptions,
    DryOptions,
    LengthOptions,
    LogprobOptions,
    RuleOptions,
    SamplingOptions,
    SpeculationOptions,
    StructuredOutputOptions,
    Texts,
    ThinkingOptions,
    TokenBiases,
)
from edgeformer.options.option import Option

_Function = TypeVar("_Function", bound=Callable[..., Any])

SPECULATION = SpeculationOptions.TITLE

TOPICS = {
    LengthOptions.TITLE: COMMON,
    RuleOptions.TITLE: SamplingOptions.TITLE,
    DryOptions.TITLE: SamplingOptions.TITLE,
    LogprobOptions.TITLE: OUTPUT,
    BeamOptions.TITLE: ENCODER_DECODERS,
}
"""Topics of help, for groups of options whose title is not that of their topic."""


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


class Bias(click.ParamType[tuple[int, float]]):
    """The value of --logit-bias: a token id and a number, joined by an equals sign."""

    name = "ID=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Return the token id and the number."""
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is no ID=VALUE, such as 42=-3.5.", param, ctx)


def length_options(function: _Function) -> _Function:
    """Declare the options that say where a text ends."""
    return declared(LengthOptions)(function)


def sampling_options(function: _Function) -> _Function:
    """Declare the options that say how tokens are chosen."""
    groups = (SamplingOptions, RuleOptions, DryOptions, ThinkingOptions, StructuredOutputOptions, SpeculationOptions)
    return declared(*groups)(function)


def thinking_options(function: _Function) -> _Function:
    """Declare the options that say whether and how much a model thinks before it answers."""
    for decorate in reversed(
        (
            cli_option(
                "--thinking/--no-thinking",
                "enable_thinking",
                default=None,
                topic=ThinkingOptions.TITLE,
                help="Think before the answer, or not, where the chat template asks. [default: the template's]",
            ),
            cli_option(
                "--reasoning-effort",
                metavar="LEVEL",
                topic=ThinkingOptions.TITLE,
                help="How much to think (low, medium, high), where the chat template asks.",
            ),
            cli_option(
                "--chat-template-kwargs",
                metavar="JSON",
                callback=_json_object,
                topic=ThinkingOptions.TITLE,
                help="Variables of the chat template, such as '{\"enable_thinking\": false}'.",
            ),
        )
    ):
        function = decorate(function)
    return function


def _json_object(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter("it is no JSON object.")
    return found


def declared(*groups: type[Any], note: str = "") -> Callable[[_Function], _Function]:
    """Return a decorator that declares the options of groups that the command line has. note: the end of their help."""
    titles = [group.TITLE for group in groups]
    chosen = [option for option in OPTIONS.values() if option.cli and option.title in titles]

    def declare(function: _Function) -> _Function:
        for option in reversed(chosen):
            function = _declare(option, note)(function)
        return function

    return declare


def flag_of(option: Option) -> str:
    """Return the name of an option on the command line."""
    return f"--{option.name.replace('_', '-')}"


def help_of(option: Option, note: str = "") -> str:
    """Return the help of an option: what it does, with names of this command line, and its default."""
    return " ".join(filter(None, _sentences(option, note)))


def explicit_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as keywords of `CausalLM.generate`; the runtime has the defaults."""
    found = {name: value for name, value in options.items() if value not in (None, ())}
    for name in found.keys() & OPTIONS.keys():
        if OPTIONS[name].metavar.startswith("FILE|"):
            found[name] = _text_or_file(found[name])
    if "top_logprobs" in found:
        found["logprobs"] = True
    return found


def _declare(option: Option, note: str) -> Any:
    settings: dict[str, Any] = {"topic": TOPICS.get(option.title, option.title), "help": help_of(option, note)}
    if option.value_type is bool:
        settings |= {"is_flag": True, "default": None}
    elif option.value_type in (int, float):
        settings["type"] = Number(option)
    elif option.value_type == TokenBiases:
        settings["type"] = Bias()
    if _is_repeated(option):
        settings["multiple"] = True
    if option.metavar:
        settings["metavar"] = option.metavar
    return cli_option(*filter(None, (flag_of(option), option.short)), **settings)


def _is_repeated(option: Option) -> bool:
    return option.value_type in (Texts, TokenBiases)


def _sentences(option: Option, note: str) -> Iterator[str]:
    """Yield the parts of an option's help."""
    text = re.sub(r"\w+_\w+", lambda name: _spelled(name[0]), option.help)
    yield f"{text[:-1]}; may be given several times." if _is_repeated(option) else text
    yield note
    says_itself = option.range.means is not None and option.range.means[0] == option.default
    if option.default and option.value_type in (int, float) and not says_itself:
        yield f"[default: {option.default}]"


def _spelled(name: str) -> str:
    """Return a name in a text as the command line spells it."""
    return flag_of(OPTIONS[name]) if name in OPTIONS and OPTIONS[name].cli else name


def _text_or_file(value: str) -> str:
    """Return the content of a file of this name, or the value itself where there is none."""
    return Path(value).read_text(encoding="utf-8") if os.path.isfile(value) else value
