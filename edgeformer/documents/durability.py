"""Let the disk have files before they get the names under which they are found."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Let the disk have all files of a folder, so that no loss of power leaves a name without its content."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Let the disk have a file, or the names in a folder; of folders on Windows nothing is done."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
