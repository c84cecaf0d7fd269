"""Write graphs and their weights into a bundle folder, one tensor at a time, and list the files with their hashes."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import onnx_ir as ir
import torch
from torch import Tensor

from edgeformer.errors import ExportError
from edgeformer.export.graph.outlining import trim_functions
from edgeformer.export.graph.tensors import PAGE, StreamedTensor
from edgeformer.export.progress import Progress
from edgeformer.export.quantize.quantized_tensor import by_matrix
from edgeformer.manifest.graph_forms import FORMS, GRAPH
from edgeformer.manifest.manifest import FILE_NAME
from edgeformer.manifest.parts import FileEntry, StoredWeight, sha256

SMALL = 64
"""Bytes: smaller tensors start at a multiple of this, the width of a cache line and of an AVX-512 register."""


def check_space(folder: Path, needed: int) -> None:
    """Raise ExportError if the disk cannot hold `needed` more bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ExportError(
            f"the bundle needs {needed / 1e9:.2f} GB and the disk of {folder.parent} has {free / 1e9:.2f} GB free. "
            "Free some space, or choose an --output on another disk."
        )


def check_sizes(tensors: Mapping[str, StreamedTensor], largest: int | None) -> None:
    """Raise ExportError for a tensor of more than `largest` bytes: ONNX cannot split a tensor over files."""
    for name, tensor in tensors.items():
        if largest is not None and tensor.nbytes > largest:
            raise ExportError(
                f"{name} takes {tensor.nbytes / 1e9:.2f} GB, and a file for browsers may have {largest / 1e9:.2f} GB, "
                "and a tensor cannot be split. Store it in fewer bits (--precision or --head-precision, int8 or "
                "int4), or export for another deployment."
            )


def weight_files(graphs: Mapping[str, str], shared: bool) -> dict[str, list[str]]:
    """Return graphs by the file of their weights: one file for all, or those that the table of forms says.

    The decoder of our runtime and the alignment graph share the file of the merged decoder, because clients that find
    weights by the name of a graph read only the merged one. graphs: by the names of their forms.
    """
    files: dict[str, list[str]] = {}
    for name, file in graphs.items():
        named = next((graphs[form] for form in FORMS[name].weights if form in graphs), file)
        files.setdefault(f"{GRAPH if shared else named}_data", []).append(file)
    return files


class GraphWriter:
    """Writes graphs into a bundle folder, streams their weights, and remembers how each weight was stored.

    shared: a weight is written once, whichever graphs read it; otherwise the graphs of each call have weights of their
    own. largest: bytes that a file of weights may have. The rest goes into further files, `NAME_1`, `NAME_2` …, which
    is how transformers.js counts them.
    """

    def __init__(self, folder: Path, progress: Progress, *, shared: bool = True, largest: int | None = None):
        self._folder = folder
        self._progress = progress
        self.shared = shared
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
        if not self.shared:
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
            for storage, tensor in by_matrix(new):
                self._places[storage] = *files.start(tensor.nbytes), tensor.nbytes
                # No name refers to a chunk, so that it is released before the next one is read.
                for size in map(files.add, map(_bytes, tensor.chunks())):
                    written += size
                    self._progress(f"writing {storage}", written / max(total, 1))
                files.check_complete(storage)
        self.hashes |= files.hashes
        for storage, readers in values.items():
            for value, tensor in readers:
                self._refer(value, tensor, (self._folder / data_name).parent, *self._places[storage])
        for name, model in models.items():
            self._save(model, name)

    def write_again(self, model: ir.Model, name: str) -> None:
        """Write another graph whose weights are all written already; it refers to them."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, StreamedTensor):
                assert tensor.storage in self._places, f"{tensor.storage} was not written"
                self._refer(value, tensor, (self._folder / name).parent, *self._places[tensor.storage])
        self._save(model, name)

    def _save(self, model: ir.Model, name: str) -> None:
        trim_functions(model)
        ir.save(model, self._folder / name)

    def _refer(
        self, value: ir.Value, tensor: StreamedTensor, folder: Path, file: str, offset: int, length: int
    ) -> None:
        """Make an initializer refer to its bytes in a file."""
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
    """Files of weights, written one after the other: `data_name`, `data_name`_1, `data_name`_2 …"""

    def __init__(self, folder: Path, data_name: str, largest: int | None):
        self._folder, self._data_name, self._largest = folder, data_name, largest
        self.hashes: dict[str, str] = {}
        self._open(data_name)

    def _open(self, name: str) -> None:
        self._name, self._written, self._digest = name, 0, hashlib.sha256()
        self._file = (self._folder / name).open("wb")

    def start(self, size: int) -> tuple[str, int]:
        """Begin a tensor of `size` bytes, aligned. Returns the name of its file, without folders, and the offset."""
        padding = bytes(-self._written % (PAGE if size >= PAGE else SMALL))
        if self._largest is not None and self._written + len(padding) + size > self._largest:
            self._close()
            self._open(f"{self._data_name}_{len(self.hashes)}")
            padding = b""
        self.add(memoryview(padding))
        offset = self._written
        self._end = offset + size
        return PurePosixPath(self._name).name, offset

    def add(self, data: memoryview) -> int:
        """Write the next bytes, and return how many they are."""
        self._file.write(data)
        self._digest.update(data)
        self._written += len(data)
        return len(data)

    def check_complete(self, name: str) -> None:
        """Check that the tensor has as many bytes as `start` was told."""
        assert self._written == self._end, f"{name} changed size"

    def _close(self) -> None:
        self._file.close()
        self.hashes[self._name] = self._digest.hexdigest()

    def __enter__(self) -> "DataFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def file_entries(folder: Path, known_hashes: dict[str, str]) -> dict[str, FileEntry]:
    """Return sizes and hashes of all files in a bundle folder except the manifest. known_hashes: by file name."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != FILE_NAME:
            entries[name] = FileEntry(bytes=path.stat().st_size, sha256=known_hashes.get(name) or sha256(path))
    return entries
