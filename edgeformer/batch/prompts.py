"""Make the prompt of a row: a column, or a Jinja template over the row's columns."""

from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeformer.batch.options import BatchOptions, Verb
from edgeformer.batch.pieces import BROKEN, Row
from edgeformer.errors import RequestError

COLUMNS: dict[Verb, tuple[str, ...]] = {
    "generate": ("prompt", "text"),
    "chat": ("messages", "prompt", "text"),
    "transcribe": ("path", "audio", "image"),
}
"""Columns that hold the prompt where the job names none, the first that exists; of other verbs it is `text`."""


def find_column(options: BatchOptions, verb: Verb, columns: list[str]) -> str | None:
    """Return the column that holds the prompt; None with a template. Raises RequestError where there is none."""
    if options.template is not None:
        if options.column is not None:
            raise RequestError("column and template are both given. Give one of them.")
        prompt_of(options.template, None)
        return None
    wanted = (options.column,) if options.column is not None else COLUMNS.get(verb, ("text",))
    for name in wanted:
        if name in columns:
            return name
    raise RequestError(
        f"the input has no column {' or '.join(map(repr, wanted))}; it has {', '.join(map(repr, columns)) or 'none'}. "
        "Name one with --column, or give a --template."
    )


def prompt_of(template: str | None, column: str | None) -> Callable[[Row], Any]:
    """Return a function from a row to its prompt, which raises RequestError for a row that has none.

    Templates run in Jinja's sandbox, and a name that the row lacks is an error. Raises RequestError for a template
    that is none.
    """
    if template is None:
        return lambda row: _cell(row, str(column))
    try:
        compiled = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(
            template
        )
    except TemplateError as error:
        raise RequestError(f"the template is no Jinja template: {error}.") from None

    def render(row: Row) -> str:
        _check_readable(row)
        try:
            return compiled.render(row)
        except Exception as error:  # of the template's own expressions, which may raise anything
            raise RequestError(f"the template does not fit this row: {error}.") from None

    return render


def _cell(row: Row, column: str) -> Any:
    _check_readable(row)
    value = row.get(column)
    if value is None:
        raise RequestError(f"the row has nothing in its column {column!r}.")
    return value


def _check_readable(row: Row) -> None:
    if BROKEN in row:
        raise RequestError(f"{row[BROKEN]}.")
