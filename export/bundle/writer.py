"""Bundle folders that are whole or not there, and the files in them.

`staged` gives a temporary folder beside the destination and renames it when everything in it is written. What a killed
export left behind is removed by the next one to the same destination; a lock tells it from an export that still runs.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.graph_specs import DECODER_GRAPH, GRAPH, MERGED_GRAPH
from edgeformer.manifest import FILE_NAME, FileEntry, StoredWeight, sha256

Progress = Callable[[str, float], None]
"""Called with what is being done and the part of it that is done, 0 to 1."""

# Memory maps start at pages; small tensors share one.
PAGE = 4096
SMALL = 64


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


def check_space(folder: Path, needed: int) -> None:
    """Raise ExportError if the disk cannot hold `needed` bytes more."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ExportError(
            f"the bundle needs {needed / 1e9:.2f} GB and the disk of {folder.parent} has {free / 1e9:.2f} GB free. "
            "Free some space, or choose an --output on another disk."
        )


def check_sizes(tensors: Mapping[str, StreamedTensor], largest: int | None) -> None:
    """Raise ExportError for a tensor that is larger than a file may be: ONNX keeps each in one file."""
    for name, tensor in tensors.items():
        if largest is not None and tensor.nbytes > largest:
            raise ExportError(
                f"{name} takes {tensor.nbytes / 1e9:.2f} GB, and a file for browsers may have {largest / 1e9:.2f} GB, "
                "which a tensor cannot be cut for. Store it in fewer bits (--precision or --head-precision, int8 or "
                "int4), or export for another target."
            )


def weight_files(graphs: Iterable[str], shared: bool) -> dict[str, list[str]]:
    """Which graphs have their weights in which file: all in one, or each in the file that is named after it.

    The decoder that is ours reads what the merged one reads, and no client that finds weights by names reads ours.
    """
    names = list(graphs)
    if shared:
        return {f"{GRAPH}_data": names}
    files: dict[str, list[str]] = {}
    for name in names:
        named = MERGED_GRAPH if name == DECODER_GRAPH and MERGED_GRAPH in names else name
        files.setdefault(f"{named}_data", []).append(name)
    return files


class GraphWriter:
    """Writes graphs into a bundle folder, streaming their weights, and remembers how each was stored and its hashes.

    shared: a weight that was written before is not written again, whichever graphs read it; otherwise the graphs of
    each call have weights of their own. largest: bytes that a file of weights may have; what does not fit goes into
    more files, `NAME_1`, `NAME_2` …, as transformers.js counts them.
    """

    def __init__(self, folder: Path, progress: Progress, *, shared: bool = True, largest: int | None = None):
        self._folder = folder
        self._progress = progress
        self._shared = shared
        self._largest = largest
        self.weights: dict[str, StoredWeight] = {}
        self.hashes: dict[str, str] = {}
        self._places: dict[str, tuple[str, int, int]] = {}

    def write(self, model: ir.Model, name: str) -> None:
        """Write one graph (onnx/model.onnx) and its weights beside it (onnx/model.onnx_data)."""
        self.write_all({name: model}, f"{name}_data")

    def write_all(self, models: Mapping[str, ir.Model], data_name: str) -> None:
        """Write graphs by their names (onnx/model.onnx) and their weights, one tensor at a time, into one file.

        A weight that several graphs read, or one graph in several shapes, is written once. Raises ExportError for a
        weight that is larger than a file may be.
        """
        if not self._shared:
            self._places = {}
        values: dict[str, list[tuple[ir.Value, StreamedTensor]]] = {}
        for model in models.values():
            for value in model.graph.initializers.values():
                if isinstance(value.const_value, StreamedTensor):
                    values.setdefault(value.const_value.storage, []).append((value, value.const_value))
        new = {storage: readers[0][1] for storage, readers in values.items() if storage not in self._places}
        total, written = sum(tensor.nbytes for tensor in new.values()), 0
        check_space(self._folder, total + PAGE * len(new))
        check_sizes(new, self._largest)
        (self._folder / data_name).parent.mkdir(exist_ok=True)
        with DataFiles(self._folder, data_name, self._largest) as files:
            for storage, tensor in new.items():
                data = _bytes(tensor.read())
                assert len(data) == tensor.nbytes, f"{storage} changed size"
                self._places[storage] = *files.add(data), len(data)
                written += len(data)
                self._progress(f"writing {storage}", written / max(total, 1))
        self.hashes |= files.hashes
        for storage, readers in values.items():
            for value, tensor in readers:
                self._refer(value, tensor, (self._folder / data_name).parent, *self._places[storage])
        for name, model in models.items():
            ir.save(model, self._folder / name)

    def _refer(
        self, value: ir.Value, tensor: StreamedTensor, folder: Path, file: str, offset: int, length: int
    ) -> None:
        """Let an initializer be what stands in a file."""
        stored, name = tensor.stored(), value.name or ""
        assert self.weights.setdefault(name, stored) == stored, f"{name} is stored in two ways"
        value.const_value = ir.ExternalTensor(
            file,
            offset,
            length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            base_dir=folder,
        )


class DataFiles:
    """Files of weights that are written one after the other: `data_name`, then `data_name`_1, `data_name`_2 …"""

    def __init__(self, folder: Path, data_name: str, largest: int | None):
        self._folder, self._data_name, self._largest = folder, data_name, largest
        self.hashes: dict[str, str] = {}
        self._open(data_name)

    def _open(self, name: str) -> None:
        self._name, self._written, self._digest = name, 0, hashlib.sha256()
        self._file = (self._folder / name).open("wb")

    def add(self, data: memoryview) -> tuple[str, int]:
        """Write a tensor where it is aligned; return the name of the file, without folders, and the offset."""
        padding = bytes(-self._written % (PAGE if len(data) >= PAGE else SMALL))
        if self._largest is not None and self._written + len(padding) + len(data) > self._largest:
            self._close()
            self._open(f"{self._data_name}_{len(self.hashes)}")
            padding = b""
        for chunk in (padding, data):
            self._file.write(chunk)
            self._digest.update(chunk)
        offset = self._written + len(padding)
        self._written = offset + len(data)
        return PurePosixPath(self._name).name, offset

    def _close(self) -> None:
        self._file.close()
        self.hashes[self._name] = self._digest.hexdigest()

    def __enter__(self) -> "DataFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def file_entries(folder: Path, known_hashes: dict[str, str]) -> dict[str, FileEntry]:
    """Sizes and hashes of all files in a bundle folder but the manifest."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != FILE_NAME:
            entries[name] = FileEntry(bytes=path.stat().st_size, sha256=known_hashes.get(name) or sha256(path))
    return entries
