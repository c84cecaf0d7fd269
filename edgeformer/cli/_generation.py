"""Options of commands that generate text, from the declarations of `edgeformer.options.generation`."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from edgeformer.cli._declared import Kinds, declare, flag_of
from edgeformer.cli._options import COMMON, ENCODER_DECODERS, OUTPUT, option
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
            option(
                "--thinking/--no-thinking",
                "enable_thinking",
                default=None,
                topic=ThinkingOptions.TITLE,
                help="Think before the answer, or not, where the chat template asks. [default: the template's]",
            ),
            option(
                "--reasoning-effort",
                metavar="LEVEL",
                topic=ThinkingOptions.TITLE,
                help="How much to think (low, medium, high), where the chat template asks.",
            ),
            option(
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


KINDS: Kinds = {Texts: {"multiple": True}, TokenBiases: {"type": Bias(), "multiple": True}}


def flags_for_names(text: str) -> str:
    """Return a text in which names of options are spelled as the command line has them."""

    def flag(name: re.Match[str]) -> str:
        return flag_of(OPTIONS[name[0]]) if name[0] in OPTIONS and OPTIONS[name[0]].cli else name[0]

    return re.sub(r"\w+_\w+", flag, text)


def declared(*groups: type[Any], note: str = "") -> Callable[[_Function], _Function]:
    """Return a decorator that declares the options of groups that the command line has. note: the end of their help."""
    titles = [group.TITLE for group in groups]
    chosen = [replace(each, help=flags_for_names(each.help)) for each in OPTIONS.values() if each.title in titles]
    return declare(chosen, KINDS, TOPICS, note)


def explicit_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as keywords of `CausalLM.generate`; the runtime has the defaults."""
    found = {name: value for name, value in options.items() if value not in (None, ())}
    for name in found.keys() & OPTIONS.keys():
        if OPTIONS[name].metavar.startswith("FILE|"):
            found[name] = _text_or_file(found[name])
    if "top_logprobs" in found:
        found["logprobs"] = True
    return found


def _text_or_file(value: str) -> str:
    """Return the content of a file of this name, or the value itself where there is none."""
    return Path(value).read_text(encoding="utf-8") if os.path.isfile(value) else value
