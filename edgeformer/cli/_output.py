"""Output that the commands share: results go to stdout, everything else to stderr."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def print_json(data: Any) -> None:
    """Print a result as JSON on stdout."""
    click.echo(json.dumps(data, indent=1, ensure_ascii=False))


def print_table(rows: Sequence[tuple[str, ...]], *header: str) -> None:
    """Print rows of text as a table on stdout; columns in which every cell starts with a digit are right-aligned.

    Args:
        rows: at least one row; all of one length.
        header: titles of the columns, or none for a table without a header.
    """
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for index in range(len(rows[0])):
        numeric = all(row[index][:1].isdigit() for row in rows)
        table.add_column(header[index] if header else "", justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def note(text: str) -> None:
    """Print a remark on stderr."""
    click.echo(text, err=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Yield `update(description, fraction done)`, which draws a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, part: progress.update(task, description=what, completed=part)
