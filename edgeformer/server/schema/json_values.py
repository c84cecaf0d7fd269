"""Values of JSON that requests hold as they are: schemas, and arguments of calls."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

MAX_DEPTH = 64
"""Objects and lists inside each other in a schema or in arguments, at most. Templates and grammars recurse."""


def problem_of(value: Any) -> str | None:
    """Return what is wrong with a value of JSON, as the end of a sentence; None for one that all can read."""
    left = [(value, 1)]
    while left:
        each, depth = left.pop()
        if depth > MAX_DEPTH:
            return f"nests objects and lists more than {MAX_DEPTH} deep"
        if isinstance(each, float) and not math.isfinite(each):
            return "has a number beyond the range of JSON"
        if isinstance(each, str) and any("\ud800" <= letter <= "\udfff" for letter in each):
            return "has half of a character (a lone surrogate)"
        if isinstance(each, Mapping):
            left += [(part, depth + 1) for part in each.values()]
            left += [(key, depth) for key in each]
        elif isinstance(each, list):
            left += [(part, depth + 1) for part in each]
    return None


def _check(schema: dict[str, Any]) -> dict[str, Any]:
    problem = problem_of(schema)
    if problem is not None:
        raise ValueError(f"the schema {problem}")
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_check)]
"""A JSON schema of a request."""
