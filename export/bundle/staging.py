"""Write a bundle folder whole or not at all.

`staged` yields a temporary folder beside the destination and renames it when everything in it is written. The next
export to the same destination removes what a killed export left behind; a lock tells leftovers from a running
export.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgeformer.errors import ExportError
from edgeformer.manifest import FILE_NAME


def check_destination(destination: Path, overwrite: bool) -> None:
    """Raise ExportError if the bundle may not be written there."""
    if not destination.exists():
        return
    if not (destination / FILE_NAME).is_file():
        raise ExportError(f"{destination} exists and is not a bundle; it is left alone. Choose another --output.")
    if not overwrite:
        raise ExportError(f"{destination} exists. Replace it with --overwrite, or choose another --output.")


@contextmanager
def staged(destination: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder that takes the destination's place on success and vanishes on any error."""
    check_destination(destination, overwrite)
    parent = destination.absolute().parent
    # Known before it is made: a signal may come at any time after.
    folder = parent / f".{destination.name}.{secrets.token_hex(4)}.partial"
    lock = None
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(destination)
            folder.mkdir()
        except OSError as error:
            raise ExportError(
                f"cannot write beside {destination}: {error.strerror}. Choose another --output."
            ) from error
        lock = _lock(folder)
        yield folder
        check_destination(destination, overwrite)
        if destination.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".partial", dir=parent))
            destination.rename(old / "replaced")
            folder.rename(destination)
            shutil.rmtree(old)
        else:
            folder.rename(destination)
        _remove_leftovers(destination)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ExportError(f"writing {destination} failed: {error.strerror or error}. Nothing was kept.") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Hold a lock on a folder until the process ends, however it ends; None if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: leftovers stay, since nothing tells them from an export that runs
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_leftovers(destination: Path) -> None:
    for folder in destination.absolute().parent.glob(f".{destination.name}.*.partial"):
        lock = _lock(folder)
        if lock is None:
            continue
        replaced = folder / "replaced"
        if replaced.exists() and not destination.exists():
            replaced.rename(destination)  # killed between the two renames: the old bundle is the one that is whole
        shutil.rmtree(folder)
        os.close(lock)
