"""Files and folders by local paths or fsspec URLs; files that appear whole or not at all."""

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from edgeformer.documents.durability import sync
from edgeformer.errors import RequestError


class Folder:
    """A folder by a local path or an fsspec URL."""

    def __init__(self, url: str):
        self.url = url
        self._files, self._path = open_url(url)

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place, whole and on the disk; another one of this name is replaced.

        An object store does that itself. On a local disk a temporary file is written, synced and renamed.
        """
        if not isinstance(self._files, LocalFileSystem):
            self._files.pipe_file(f"{self._path}/{name}", content)
            return
        target = Path(self._path) / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=target.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                os.replace(temporary, target)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
            sync(target.parent)
        except OSError as error:
            raise RequestError(f"cannot write {target}: {error.strerror}.") from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        try:
            content: bytes = self._files.cat_file(f"{self._path}/{name}")
            return content
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in a file, None where there is none."""
        content = self.read(name)
        return None if content is None else json.loads(content)

    def sizes(self, under: str = "") -> dict[str, int]:
        """Return the bytes of the files in this folder, or in one inside it, by name; without temporary ones."""
        path = f"{self._path}/{under}" if under else self._path
        self._files.invalidate_cache()
        try:
            found = self._files.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        names = {entry["name"].rpartition("/")[2]: entry for entry in found if entry["type"] == "file"}
        return {name: entry["size"] for name, entry in names.items() if not name.startswith(".")}

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")

    def remove_temporary(self) -> None:
        """Remove files that a process was writing when it was killed; nobody may be writing now."""
        if isinstance(self._files, LocalFileSystem) and Path(self._path).is_dir():
            for path in Path(self._path).rglob(".*.tmp"):
                path.unlink(missing_ok=True)


def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it. Raises RequestError for an unknown protocol."""
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise RequestError(f"cannot open {url}: {error}. Give a local path, or install what this URL needs.") from None
    return files, str(path).rstrip("/")


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
