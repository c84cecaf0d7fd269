"""Click building blocks that the commands share: help in sections, and options of several commands.

A command is declared with `@click.command(NAME, cls=Command)` and `@option(..., topic=TOPIC)`. Its help then has one
section per topic, in the order in which the topics first appear in the declaration; `Output` is always the last.
This module imports nothing but click, as `edgeformer --help` has to start quickly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])

COMMON = "Common"
ENCODER_DECODERS = "Encoder-decoders"
EXECUTION = "Execution"
VERIFICATION = "Verification"
OUTPUT = "Output"

COUNT: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "N"}
"""Settings of an option that takes a positive number."""

NAME_WIDTH = 28
"""Columns of the names of options in help at most; a longer name has a line of its own. click's own limit is 30."""


class Option(click.Option):
    """An option that belongs to a topic.

    Args:
        topic: title of the section of the help that shows this option.
    """

    def __init__(self, *args: Any, topic: str = COMMON, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.topic = topic


def option(*names: str, topic: str = COMMON, **settings: Any) -> Any:
    """Declare an `Option`; `settings` are those of click.option."""
    return click.option(*names, cls=Option, topic=topic, **settings)


class Command(click.Command):
    """A command whose help shows options by topic."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per topic, with the descriptions of all sections in one column."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                topic = param.topic if isinstance(param, Option) else OUTPUT
                sections.setdefault(topic, []).append(record)
        output = sections.pop(OUTPUT, [])
        write_sections(formatter, sections | ({OUTPUT: output} if output else {}))


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write titled lists of (name, description) whose descriptions start in one column."""
    names = [name for rows in sections.values() for name, _ in rows]
    width = max((len(name) for name in names if len(name) <= NAME_WIDTH), default=0)
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=NAME_WIDTH)


OWN_PROCESS = "own process"
"""The object of contexts in a process of the command line; a program that calls `cli` in its own has none."""


def warn(text: str) -> None:
    """Print a warning on stderr, in the form of all warnings of the command line."""
    click.echo(f"warning: {text}", err=True)


json_option = option("--json", "as_json", is_flag=True, topic=OUTPUT, help="Print one JSON document instead of text.")


cache_option = option(
    "--cache-precision", type=click.Choice(["int8"]), topic=EXECUTION,
    help="Keep keys and values in int8, each with its own scale. Needs edgeformer-kernels. [default: the bundle's]",
)  # fmt: skip


def execution_options(function: _Function) -> _Function:
    """Declare --provider and --threads, for commands that run a bundle."""
    threads = option(
        "--threads",
        **COUNT,
        topic=EXECUTION,
        help="CPU threads. [default: all usable cores]",
    )
    from edgeformer.manifest.providers import PROVIDERS  # only once a command is loaded that runs a bundle

    provider = option(
        "--provider", type=click.Choice(["auto", *PROVIDERS]), default="auto", show_default=True, topic=EXECUTION,
        help="Execution provider of onnxruntime.",
    )  # fmt: skip
    decorated: _Function = provider(threads(function))
    return decorated
