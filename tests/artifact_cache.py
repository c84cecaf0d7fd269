"""A cache of what tests make slowly: traced graphs, and bundles. Shared by workers and runs.

    build/test-cache/KIND/KEY/…        KEY = hash of sources, versions of packages, and how the entry is made

An entry is made under a lock, written whole or not at all, and never changed: whoever wants to change files copies
them. `check_untouched` finds a test that does not. EDGEFORMER_TEST_CACHE is another folder for it, or `off`.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
SWITCH = "EDGEFORMER_TEST_CACHE"
MAX_AGE, MAX_BYTES = 14 * 24 * 3600, 2 << 30
"""Entries that nobody used for so many seconds are removed, and then the oldest beyond so many bytes."""
STAMP = ".stamp"
PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "transformers", "safetensors", "numpy")

_used: set[Path] = set()


def cache_folder() -> Path | None:
    """Return the folder of the cache; None where it is switched off."""
    setting = os.environ.get(SWITCH, "")
    return None if setting == "off" else Path(setting or ROOT / "build" / "test-cache")


@functools.cache
def versions() -> str:
    """Return the versions of all packages that take part in an export."""
    return repr([sys.version, *(importlib.metadata.version(package) for package in PACKAGES)])


def hash_of(parts: Iterable[str | bytes]) -> str:
    """Return a hash of texts, in their order."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()[:32]


def hash_of_files(paths: Iterable[Path], base: Path) -> str:
    """Return a hash of files and of their names within a folder."""
    return hash_of(
        part for path in sorted(paths) for part in (path.relative_to(base).as_posix().encode(), path.read_bytes())
    )


@functools.cache
def hash_of_sources(folders: tuple[str, ...], without: tuple[str, ...] = ()) -> str:
    """Return a hash of all files in folders of the repository, but for some folders within."""
    left_out = tuple(ROOT / name for name in without)
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not any(path.is_relative_to(no) for no in left_out)
    ]
    return hash_of_files(files, ROOT)


def cached(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of an entry, which `make` fills where the cache has none. Read-only: copy it to change it."""
    place = cache_folder()
    if place is None:
        folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
        make(folder)
        return folder
    entry = place / kind / key
    if not (entry / STAMP).exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with entry.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (entry / STAMP).exists():
                _make(entry, make)
    os.utime(entry / STAMP)
    _used.add(entry)
    return entry


def _make(entry: Path, make: Callable[[Path], None]) -> None:
    shutil.rmtree(entry, ignore_errors=True)
    staged = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=entry.parent))
    try:
        make(staged)
        (staged / STAMP).write_text(json.dumps(_state(staged)))
        staged.rename(entry)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _state(entry: Path) -> dict[str, list[int]]:
    """Return the size and the time of the last change of every file of an entry."""
    files = (path for path in sorted(entry.rglob("*")) if path.is_file() and path.name != STAMP)
    return {path.relative_to(entry).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}


def check_untouched() -> None:
    """Raise AssertionError, and drop the entry, where a test changed an entry that it was given."""
    changed = [entry for entry in _used if json.loads((entry / STAMP).read_text()) != _state(entry)]
    _used.clear()
    for entry in changed:
        shutil.rmtree(entry)
    assert not changed, f"entries of the cache were changed: {', '.join(map(str, changed))}. Copy them first."


def prune() -> None:
    """Remove entries that were not used for long, and the oldest of too many."""
    place = cache_folder()
    if place is None or not place.is_dir():
        return
    stamps = sorted(place.glob(f"*/*/{STAMP}"), key=lambda stamp: -stamp.stat().st_mtime)
    kept = 0
    for stamp in stamps:
        kept += sum(size for size, _ in json.loads(stamp.read_text()).values())
        if kept > MAX_BYTES or time.time() - stamp.stat().st_mtime > MAX_AGE:
            shutil.rmtree(stamp.parent)
            stamp.parent.with_suffix(".lock").unlink(missing_ok=True)
