"""Read JSON documents that anybody may have written: within limits, and with errors that name the file.

What every reader needs is checked here once: size, depth, UTF-8, and the kind of the document. Numbers are those that
other programs read: an integer beyond 64 bits becomes a float, as in JavaScript, so that it is never taken for a count.
"""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from edgeformer.errors import ConfigError, EdgeformerError

LARGEST = 256 << 20
"""Bytes of a document at most. The largest that models come with, tokenizer.json of 262,000 tokens, has 33 million."""

DEEPEST = 100
"""Levels of lists and objects at most. Documents of models have about ten."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_object(path: Path, error: type[EdgeformerError] = ConfigError) -> dict[str, Any]:
    """Return the JSON object in a file. Raises `error`, which names the file and what is wrong with it."""
    data: dict[str, Any] = read_document(path, dict, error)
    return data


def read_document(path: Path, kind: type[Any], error: type[EdgeformerError] = ConfigError) -> Any:
    """Return the JSON document in a file, a `dict` or a `list`. Raises `error`, as `read_object` does."""
    try:
        data = parse(read_text(path, error))
    except ValueError as problem:
        raise error(f"{path} cannot be read: it is not valid JSON: {problem}. Copy it again.") from None
    if not isinstance(data, kind):
        raise error(f"{path} cannot be read: it must hold a JSON {'object' if kind is dict else 'list'}.")
    return data


def read_text(path: Path, error: type[EdgeformerError] = ConfigError) -> str:
    """Return the text of a file. Raises `error` for one that cannot be read, is too large, or is not UTF-8."""
    try:
        size = path.stat().st_size
        if size > LARGEST or not path.is_file():
            raise error(f"{path} cannot be read: it must be a file of at most {LARGEST >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise error(
            f"{path} cannot be read: it is not UTF-8 ({problem.reason} at byte {problem.start:,}). Copy it again."
        ) from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}.") from None


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for another text, for more than DEEPEST levels, and for halves of characters (lone surrogates),
    which JSON can spell and no program can write.
    """
    try:
        data = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels of lists and objects") from None
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels of lists and objects")
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside += value.keys()
                inside += value.values()
            elif isinstance(value, list):
                inside += value
            elif isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
                raise ValueError("a text in it has half of a character (a lone surrogate)")
        level = inside
    return data


def _integer(digits: str) -> int | float:
    """Return a number without a point; one beyond 64 bits as a float."""
    value = int(digits) if len(digits) <= 20 else 2**64
    return value if -(2**63) <= value < 2**63 else float(digits)


def is_inside(name: str) -> bool:
    """Return whether the name of a file, relative to a folder, cannot lead out of that folder."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or any(character in name for character in "\\:\0")
    return bool(path.parts) and not outside


def is_contained(path: Path, folder: Path) -> bool:
    """Return whether a file, with all symbolic links followed, lies in a folder.

    The cache of the Hugging Face Hub keeps the files of a folder `snapshots/REVISION` in `blobs` beside `snapshots`,
    and links to them; these lie in it, too.
    """
    real, home = path.resolve(), folder.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    return real.is_relative_to(home) or real.is_relative_to(blobs)
