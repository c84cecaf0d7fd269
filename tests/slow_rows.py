"""Which rows of a table run by default: those that a test names, or the first few. The others are slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_unless(fast: Collection[Any], rows: Iterable[Any]) -> list[Any]:
    """Return the rows of a table as test cases, slow ones but those in `fast`. A row is a value or a tuple of them."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=() if row in fast else pytest.mark.slow)
        for row in rows
    ]


def slow_after(count: int, rows: Iterable[Any]) -> list[Any]:
    """Return the rows of a table as test cases, slow ones but the first few."""
    rows = list(rows)
    return slow_unless(rows[:count], rows)
