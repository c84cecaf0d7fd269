"""Write a bundle folder whole or not at all.

`staged` yields a temporary folder beside the destination and renames it when everything in it is written. The next
export to the same destination removes what a killed export left behind; a lock tells leftovers from a running
export.
"""

import ctypes
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgeformer.documents.durability import sync, sync_folder
from edgeformer.errors import BundleError, ExportError
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.runtime.sessions.prepacked.prepacked_graphs import FOLDER as PREPACKED

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of renameat2. Source: its manual page, and linux/fs.h."""


def check_destination(destination: Path, overwrite: bool) -> None:
    """Raise ExportError if the bundle may not be written there.

    A bundle is replaced whole, so one that holds files which no export wrote is left alone.
    """
    if not os.path.exists(destination):
        return
    if not (destination / FILE_NAME).is_file():
        raise ExportError(f"{destination} exists and is not a bundle; it is left alone. Choose another --output.")
    if not overwrite:
        raise ExportError(f"{destination} exists. Replace it with --overwrite, or choose another --output.")
    try:
        others = _files_of_others(destination, Manifest.read(destination))
    except BundleError as error:
        raise ExportError(
            f"{destination} is not replaced, since nothing tells which of its files an export wrote: {error} Remove "
            "the folder yourself, or choose another --output."
        ) from error
    if others:
        more = f" and {len(others) - 5:,} more" if len(others) > 5 else ""
        raise ExportError(
            f"{destination} is not replaced, since it holds files that no export wrote: {', '.join(others[:5])}{more}. "
            "Move them elsewhere, or choose another --output."
        )


def _files_of_others(bundle: Path, manifest: Manifest) -> list[str]:
    """Return the files of a bundle that neither its export nor `optimize` wrote, as paths within it."""
    files = (path.relative_to(bundle) for path in sorted(bundle.rglob("*")) if path.is_symlink() or not path.is_dir())
    ours = (PREPACKED, f".{PREPACKED}.")
    names = (path.as_posix() for path in files if path.parts[0] != ours[0] and not path.parts[0].startswith(ours[1]))
    return [name for name in names if name != FILE_NAME and name not in manifest.files]


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
        sync_folder(folder)
        if not os.path.exists(destination):
            folder.rename(destination)
        elif _exchange(folder, destination):
            shutil.rmtree(folder)
        else:
            _replace(destination, folder)
        sync(parent)
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


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return False where the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # Linux, glibc 2.28
    except (AttributeError, OSError, TypeError):
        return False
    result: int = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return result == 0


def _replace(destination: Path, folder: Path) -> None:
    """Put a folder in the place of another one, which comes back if that fails."""
    old = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".partial", dir=destination.absolute().parent))
    try:
        destination.rename(old / "replaced")
        folder.rename(destination)
    except BaseException:
        if (old / "replaced").exists() and not destination.exists():
            (old / "replaced").rename(destination)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


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
