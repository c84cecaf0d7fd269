"""Options of commands that generate text: its length, sampling, structured output, speculation."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgeformer.cli._options import COMMON, COUNT, option

_Function = TypeVar("_Function", bound=Callable[..., Any])

SAMPLING = "Sampling"
SPECULATION = "Speculation"
STRUCTURED = "Structured output"


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


BIAS = Bias()

LENGTH_OPTIONS = [
    option(
        "--max-new-tokens",
        "-n",
        type=int,
        metavar="N",
        topic=COMMON,
        help="Tokens to generate at most. [default: 256, or what the context leaves]",
    ),
    option("--stop", multiple=True, topic=COMMON, help="End before this text; may be given several times."),
]

SAMPLING_OPTIONS = [
    option("--temperature", type=float, topic=SAMPLING, help="0 is greedy, and the default."),
    option("--top-k", type=int, metavar="N", topic=SAMPLING, help="Keep the k most likely tokens; 0 keeps all."),
    option("--top-p", type=float, topic=SAMPLING, help="Keep the fewest tokens that reach this probability."),
    option(
        "--min-p", type=float, topic=SAMPLING, help="Keep tokens of at least this fraction of the largest probability."
    ),
    option(
        "--typical-p",
        type=float,
        topic=SAMPLING,
        help="Keep the tokens nearest to the entropy, up to this probability.",
    ),
    option(
        "--xtc-probability", type=float, topic=SAMPLING, help="Drop the most likely tokens in this fraction of steps."
    ),
    option(
        "--xtc-threshold", type=float, topic=SAMPLING, help="Probability from which XTC drops tokens. [default: 0.1]"
    ),
    option("--repetition-penalty", type=float, topic=SAMPLING, help="Above 1, repeat less."),
    option("--presence-penalty", type=float, topic=SAMPLING, help="Above 0, new tokens that came before come less."),
    option("--frequency-penalty", type=float, topic=SAMPLING, help="The same for every time that the token came."),
    option(
        "--dry-multiplier", type=float, topic=SAMPLING, help="Above 0, texts that came before are not repeated (DRY)."
    ),
    option(
        "--logit-bias",
        multiple=True,
        type=BIAS,
        topic=SAMPLING,
        help="Add VALUE to the logit of token ID; may be given several times.",
    ),
    option("--ignore-eos", is_flag=True, topic=SAMPLING, help="Go on after an end token."),
    option("--seed", type=int, metavar="N", topic=SAMPLING, help="Make sampling repeatable."),
    option(
        "--json-schema",
        metavar="FILE|JSON",
        topic=STRUCTURED,
        help="Write JSON that this schema allows.",
    ),
    option("--regex", topic=STRUCTURED, help="Write a text that this regular expression matches."),
    option("--grammar", metavar="FILE|LARK", topic=STRUCTURED, help="Write a text of this grammar."),
    option(
        "--num-assistant-tokens",
        **COUNT,
        topic=SPECULATION,
        help="With --draft, tokens at a time at most. [default: 8]",
    ),
    option(
        "--prompt-lookup-num-tokens",
        **COUNT,
        topic=SPECULATION,
        help="Draft up to N tokens at a time of what came before.",
    ),
    option(
        "--max-matching-ngram-size", **COUNT, topic=SPECULATION, help="Last tokens to look up for a draft. [default: 3]"
    ),
]


def length_options(function: _Function) -> _Function:
    """Declare --max-new-tokens and --stop."""
    return _declare(LENGTH_OPTIONS, function)


def sampling_options(function: _Function) -> _Function:
    """Declare the options that say how tokens are chosen."""
    return _declare(SAMPLING_OPTIONS, function)


def _declare(options: list[Any], function: _Function) -> _Function:
    for each in reversed(options):
        function = each(function)
    return function


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as keywords of `CausalLM.generate`; the runtime has the defaults."""
    found = {name: value for name, value in options.items() if value not in (None, ())}
    if not found["ignore_eos"]:
        del found["ignore_eos"]
    for name in found.keys() & {"json_schema", "grammar"}:
        found[name] = _text_or_file(found[name])
    if "top_logprobs" in found:
        found["logprobs"] = True
    return found


def _text_or_file(value: str) -> str:
    """Return the content of a file of this name, or the value itself where there is none."""
    return Path(value).read_text(encoding="utf-8") if os.path.isfile(value) else value
