"""LoRA adapters at run time: their files, sums of them, and sessions that take one as further inputs.

A request names an adapter, or a weighted sum: `polite*0.7+brief*0.3` adds 0.7 · B A (x) of the one and 0.3 · B A (x) of
the other, as one adapter whose rank is that of both. A weight that is left out is 1.

A file of adapters is in the format safetensors: eight bytes with the length of a header in JSON, that header, and the
numbers. https://github.com/huggingface/safetensors has the format.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.documents.json_document import parse
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest

Tensors = Mapping[str, NDArray[Any]]

RANK_AXES = {"lora_A": 2, "lora_B": 1}
"""Axes of the rank in the inputs of the adapter graph: SITE.lora_A [rows, in, rank], SITE.lora_B [rows, rank, out]."""

DTYPES: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16}


def adapter_names(manifest: Manifest) -> list[str]:
    """Return the names of the adapters in a bundle."""
    return [adapter.name for adapter in manifest.adapters]


def adapter_weights(manifest: Manifest, adapter: str) -> dict[str, float]:
    """Return the weights of the adapters that a request names, by name: one, or terms NAME*WEIGHT between `+`.

    Raises RequestError for an adapter that the bundle does not have or that is named twice, and for a weight that is
    no number.
    """
    names, weights = adapter_names(manifest), dict[str, float]()
    for term in adapter.split("+"):
        name, times, factor = term.strip().partition("*")
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none; export it with --adapter NAME=DIR"
            raise RequestError(f"the bundle has no adapter {name!r}; {has}.")
        try:
            weight = float(factor) if times else 1.0
        except ValueError:
            weight = math.nan
        if name in weights or not math.isfinite(weight):
            raise RequestError(
                f"adapter is {adapter!r}; it must be the name of an adapter, or a sum such as "
                f"{'+'.join(f'{each}*0.5' for each in names[:2])}, in which each is named once."
            )
        weights[name] = weight
    return weights


def read_adapter(folder: Path, manifest: Manifest, adapter: str) -> Tensors:
    """Return the inputs of the adapter graph for one row, by name: of an adapter, or of a weighted sum of several.

    The numbers of one adapter are mapped from its file. Raises RequestError as `adapter_weights`, and BundleError for a
    damaged file.
    """
    weights = adapter_weights(manifest, adapter)
    parts = [_scaled(_read_file(folder, manifest, name), weight) for name, weight in weights.items()]
    if len(parts) == 1:
        return parts[0]
    return {site: np.concatenate([part[site] for part in parts], RANK_AXES[_part_of(site)]) for site in parts[0]}


def _scaled(tensors: Tensors, weight: float) -> Tensors:
    """Return the inputs of an adapter whose product is multiplied by a weight."""
    if weight == 1:
        return tensors
    return {
        name: tensor * tensor.dtype.type(weight) if _part_of(name) == "lora_B" else tensor
        for name, tensor in tensors.items()
    }


def _part_of(site: str) -> str:
    """Return whether an input is A or B, by the last part of its name."""
    return site.rpartition(".")[2]


def _read_file(folder: Path, manifest: Manifest, name: str) -> Tensors:
    """Return the inputs of one adapter, mapped from its file. Raises BundleError for a damaged one."""
    path = folder / next(adapter.file for adapter in manifest.adapters if adapter.name == name)
    try:
        return _read(path)
    except (ValueError, KeyError, TypeError, OSError) as problem:
        raise BundleError(f"{path} is damaged: {problem}. Copy or export the bundle again.") from None


def _read(path: Path) -> Tensors:
    """Read a file in the format safetensors. Raises ValueError, KeyError or TypeError for another one."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size - 8:
            raise ValueError("its header is longer than the file")
        header = parse(file.read(length))
    numbers = np.memmap(path, np.uint8, "r", 8 + length) if path.stat().st_size > 8 + length else np.empty(0, np.uint8)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (start, end) = np.dtype(DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if not 0 <= start <= end <= len(numbers) or end - start != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{name} is not where its header says")
        tensors[name] = numbers[start:end].view(dtype).reshape(shape)
    return tensors


class AdaptedSession:
    """A session of the adapter graph whose further inputs are bound: it runs like a session of the decode graph.

    tensors: the inputs by name; they are read whenever the session runs, and may be changed between runs.
    """

    def __init__(self, session: Any, tensors: Tensors):
        self._session = session
        self._tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        self._inputs = [value for value in session.get_inputs() if value.name not in tensors]
        self.has_team = getattr(session, "has_team", False)
        self.get_outputs = session.get_outputs
        self.get_overridable_initializers = session.get_overridable_initializers
        self.run_with_iobinding = session.run_with_iobinding

    def get_inputs(self) -> list[Any]:
        """Return the inputs that are not bound."""
        return self._inputs

    def io_binding(self) -> Any:
        """Return a new binding that has the adapter."""
        binding = self._session.io_binding()
        for name, tensor in self._tensors.items():
            binding.bind_input(name, "cpu", 0, tensor.dtype, tensor.shape, tensor.ctypes.data)
        return binding

    def run(self, names: Any, feeds: Mapping[str, Any], options: Any = None) -> Any:
        """Run with the given inputs and the adapter's."""
        return self._session.run(names, {**self._tensors, **feeds}, options)
