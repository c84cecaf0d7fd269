"""The options that benchmarks share, and the end of their reports: figures as tables and as a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import RenderableType

from benchmarks.interleave import report_console

F = TypeVar("F", bound=Callable[..., Any])


def measurement(rounds: int, threads: int | None = None) -> Callable[[F], F]:
    """Return a decorator that gives a command the options --rounds, --threads and --json, by their defaults."""
    cores = "Threads of each contender." + ("" if threads else " [default: all usable cores]")
    options = (
        click.option("--rounds", type=click.IntRange(min=1), default=rounds, show_default=True),
        click.option("--threads", type=click.IntRange(min=1), default=threads, show_default=bool(threads), help=cores),
        click.option(
            "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures here."
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def publish(data: dict[str, Any], file: Path | None, *report: RenderableType) -> None:
    """Print the tables and lines of a report and the environment of its figures, and write these to a file, if any."""
    console = report_console()
    for part in report:
        console.print(part, soft_wrap=isinstance(part, str))
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))
    if file:
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
