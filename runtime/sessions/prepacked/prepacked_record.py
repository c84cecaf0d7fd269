"""Remember the prepacked graphs that `optimize` wrote for this user, so that no others are ever opened.

    $EDGEFORMER_CACHE/prepacked/KEY.json        by default $XDG_CACHE_HOME/edgeformer, or ~/.cache/edgeformer

A bundle that somebody else made may hold prepacked graphs, too, and neither its manifest nor its certificate speaks of
them. The record is outside of bundles, where nobody else writes.
"""

import json
import os
from pathlib import Path
from typing import Any

from edgeformer.documents.json_document import read_object
from edgeformer.errors import EdgeformerError
from edgeformer.manifest.parts import sha256

CACHE = "EDGEFORMER_CACHE"
"""The environment variable that names the folder for what edgeformer remembers about this machine for a user."""


def record_file(key: str) -> Path:
    """Return the path of the record of the prepacked graphs with a key."""
    cache = os.environ.get(CACHE)
    folder = Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgeformer"
    return folder / "prepacked" / f"{key}.json"


def remember(folder: Path) -> None:
    """Record the files of a folder of prepacked graphs, whose name is their key. Raises OSError."""
    files = {path.name: {"sha256": sha256(path), "stamp": _stamp(path)} for path in sorted(folder.iterdir())}
    record = record_file(folder.name)
    record.parent.mkdir(parents=True, exist_ok=True)
    written = record.with_suffix(f".{os.getpid()}.partial")
    written.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    written.replace(record)


def is_remembered(folder: Path) -> bool:
    """Return whether a folder of prepacked graphs has the files that were recorded under its key, and no others.

    A file that is still the recorded one by device, inode, size and time is not read; a copy of it is hashed.
    """
    try:
        files = read_object(record_file(folder.name))
        names = {path.name for path in folder.iterdir()}
        return names == files.keys() and all(_is_same(folder / name, entry) for name, entry in files.items())
    except (EdgeformerError, OSError):
        return False


def _is_same(path: Path, entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    return entry.get("stamp") == _stamp(path) or entry.get("sha256") == sha256(path)


def _stamp(path: Path) -> list[int]:
    """Return device, inode, bytes and time of change in ns of a file."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]
