"""A bundle on every node, checked before it is used."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgeformer.documents.durability import sync_folder
from edgeformer.errors import BundleError
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.manifest.parts import sha256

CHUNK = 32 << 20
"""Bytes of one object in Ray's store, so that the store need not hold a bundle as a whole."""


def bundle_hash(folder: Path) -> str:
    """Return the SHA-256 of a bundle's manifest, which holds those of all files."""
    return sha256(folder / FILE_NAME)


def check_bundle(folder: Path, expected: str) -> None:
    """Read all files of a bundle. Raises BundleError where the manifest or a file is another one."""
    if bundle_hash(folder) != expected:
        raise BundleError(
            f"{folder} is another bundle than the one that the job began with. Copy that one to this node."
        )
    for name, entry in Manifest.read(folder).files.items():
        if sha256(folder / name) != entry.sha256:
            raise BundleError(f"{name} in {folder} is damaged: its SHA-256 is another one. Copy the bundle again.")


def chunks(folder: Path, put: Callable[[bytes], Any]) -> dict[str, list[Any]]:
    """Return what `put` returned for the chunks of every file of a bundle, by name."""
    found: dict[str, list[Any]] = {}
    for name in (FILE_NAME, *Manifest.read(folder).files):
        with (folder / name).open("rb") as file:
            found[name] = [put(block) for block in iter(lambda: file.read(CHUNK), b"")]
    return found


def cache_folder() -> Path:
    """Return where bundles are kept on a node: EDGEFORMER_BATCH_CACHE, or a folder of the user's cache."""
    given = os.environ.get("EDGEFORMER_BATCH_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "edgeformer" / "bundles"


def bundle_on_node(
    path: Path, expected: str, parts: Mapping[str, list[Any]] | None, get: Callable[[Any], bytes]
) -> Path:
    """Return the folder of a bundle on this node, checked: `path` if all nodes see it, else a copy in the cache.

    parts: from `chunks`, None for a path that all nodes see. The first worker of a node copies, the others wait for it.
    """
    if parts is None:
        check_bundle(path, expected)
        return path
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / expected
    with (cache / f"{expected}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            staging = Path(tempfile.mkdtemp(prefix=f".{expected[:8]}-", dir=cache))
            try:
                _copy(staging, parts, get)
                check_bundle(staging, expected)
                sync_folder(staging)
                staging.rename(target)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
    check_bundle(target, expected)
    return target


def _copy(folder: Path, parts: Mapping[str, list[Any]], get: Callable[[Any], bytes]) -> None:
    for name, blocks in parts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            for block in blocks:
                stream.write(get(block))
