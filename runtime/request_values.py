"""Check what calls are given: texts, token ids and options. Errors name the argument, its value and what is right.

Nothing is converted in silence: True is no number, "5" no token id, and 1.5 no count. Numbers of numpy are numbers.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

import numpy as np

from edgeformer.errors import RequestError
from edgeformer.options.generation import MOST_ROWS as MOST_ROWS

LONGEST_SECONDS = TIMEOUT_MAX / 2
"""The longest time that a lock waits is TIMEOUT_MAX from now; a larger number of seconds is taken for this one."""


def shown(value: Any) -> str:
    """Return a value as errors show it, cut where it is long."""
    text = repr(value)
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else f"{text} ({type(value).__name__})"


@contextmanager
def naming_entry(what: str, index: int, value: Any, of: int) -> Iterator[None]:
    """Name an entry of a list in errors about it. of: entries of the list; the only one needs no name."""
    try:
        yield
    except RequestError as error:
        if of != 1:
            error.args = (f"{what} {index} of the list, {shown(value)}: {error}", *error.args[1:])
        raise


def field_of(name: str) -> str:
    """Return the argument that a name is of: `stop` of `stop[3]`."""
    return name.partition("[")[0]


def integer(name: str, value: Any) -> int:
    """Return an integer of Python or numpy as Python's. Raises RequestError for anything else, such as True or 2.0."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number.", field=field_of(name))
    return int(value)


def number(name: str, value: Any) -> float:
    """Return a number of Python or numpy as Python's. Raises RequestError for anything else; NaN is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise RequestError(f"{name} is {shown(value)}; it must be a number.", field=field_of(name))
    return value if isinstance(value, int | float) else value.item()


def count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number within bounds as Python's. Raises RequestError for anything else."""
    found = integer(name, value)
    if found < least or (most is not None and found > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most:,}"
        raise RequestError(f"{name} is {found}; it must be {bounds}.", field=name)
    return found


def flag(name: str, value: Any) -> bool:
    """Return True or False. Raises RequestError for anything else: no other value is taken for one of them."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; it must be True or False.", field=name)
    return value


def seconds(name: str, value: Any) -> float | None:
    """Return a time in seconds, or None for no limit. Raises RequestError for anything else, and for NaN."""
    if value is None:
        return None
    found = number(name, value)
    if not found >= 0:
        raise RequestError(f"{name} is {found}; it must be a time in seconds, or None for no limit.")
    return min(found, LONGEST_SECONDS)


def path(name: str, value: Any, kind: str = "folder") -> Path:
    """Return the path of a `kind`. Raises RequestError for anything but a text or a Path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise RequestError(f"{name} is {shown(value)}; it must be the path of a {kind}, as a text or a Path.")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise RequestError(f"{name} is {shown(value)}, which no file of this system can be named.") from None
    return Path(value)


def text(name: str, value: Any) -> str:
    """Return a text. Raises RequestError for anything else, and for one with a lone surrogate."""
    if not isinstance(value, str):
        raise RequestError(f"the {name} is {shown(value)}; it must be a text.")
    checked = text_or_ids(name, value)
    assert isinstance(checked, str)
    return checked


def functions(name: str, value: Any) -> Sequence[Any]:
    """Return a list of functions. Raises RequestError for anything else."""
    if not is_list(value) or not all(callable(each) for each in value):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of functions.")
    functions: Sequence[Any] = value
    return functions


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Return a mapping. Raises RequestError for anything else."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {shown(value)}; it must be a mapping of names to values.")
    return value


def is_list(value: Any) -> bool:
    """Return whether a value is a list, a tuple, a range or an array with an axis; a text is none."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def token_ids(name: str, value: Any) -> list[int]:
    """Return token ids as Python's integers. Raises RequestError for anything but a list of whole numbers."""
    if not is_list(value):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of token ids.", field=field_of(name))
    if isinstance(value, list) and all(type(each) is int for each in value):
        return list(value)  # as tokenizers give them, without a name for each
    return [integer(f"{name}[{place}]", each) for place, each in enumerate(value)]


def text_or_ids(name: str, value: Any) -> str | list[int]:
    """Return a text, or token ids as Python's integers. Raises RequestError for anything else.

    A text with a lone surrogate, which is half of a character and no UTF-8, is refused, too.
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            found = value[error.start]
            raise RequestError(
                f"the {name} has the lone surrogate {found!r} at character {error.start}, which is half of a "
                "character. It comes of text that was cut or read with errors='surrogateescape'."
            ) from None
        return value
    if not is_list(value):
        hint = " Decode it first: data.decode()." if isinstance(value, bytes | bytearray) else ""
        raise RequestError(f"the {name} is {shown(value)}; it must be a text or a list of token ids.{hint}")
    return token_ids(f"the {name}", value)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a sentence that proposes the most similar of the known names, with a space before it; or nothing."""
    similar = get_close_matches(name, known, n=1)
    return f" Did you mean {similar[0]}?" if similar else ""
