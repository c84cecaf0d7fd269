"""The adapters of an engine's rows: the inputs of the adapter graph with one entry for each row.

    SITE.lora_A [rows, in, rank], SITE.lora_B [rows, rank, out]      a row without an adapter has zeros

A row's adapter is written into its entries when its request begins, so that a step copies nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.steps.adapters import AdaptedSession, Tensors, read_adapter
from edgeformer.runtime.tasks.causal_lm import CausalLM


class RowAdapters:
    """Adapters by row. model: a decoder; its files of adapters are opened here, their graph when it is first needed.

    bytes_per_row: memory that each row takes once an adapter has run in it.
    """

    def __init__(self, model: CausalLM, rows: int):
        self._model = model
        self._adapters: Mapping[str, Tensors] = {
            name: read_adapter(model.folder, model.manifest, name) for name in model.adapters
        }
        self.names: list[str | None] = [None] * rows
        shapes: dict[str, tuple[int, ...]] = {}
        for tensors in self._adapters.values():
            for name, tensor in tensors.items():
                shapes[name] = tuple(map(max, tensor.shape, shapes.get(name, tensor.shape)))
        dtypes = {name: tensor.dtype for tensors in self._adapters.values() for name, tensor in tensors.items()}
        # The system gives memory for zeros where they are first written.
        self._rows: dict[str, NDArray[Any]] = {
            name: np.zeros((rows, *shape[1:]), dtypes[name]) for name, shape in shapes.items()
        }
        self.bytes_per_row = sum(dtypes[name].itemsize * math.prod(shape) for name, shape in shapes.items())

    def set(self, row: int, name: str | None) -> None:
        """Give a row an adapter, or none."""
        if name == self.names[row]:
            return
        self.names[row] = name
        for site, rows in self._rows.items():
            rows[row] = 0
            if name is not None:
                tensor = self._adapters[name][site][0]
                rows[row][tuple(map(slice, tensor.shape))] = tensor

    def session_of(self, row: int) -> AdaptedSession | None:
        """Return a session for one row by itself; None where the row has no adapter."""
        name = self.names[row]
        return None if name is None else AdaptedSession(self._model.adapter_session, self._adapters[name])

    def any_of(self, rows: range) -> bool:
        """Return whether any of some adjacent rows has an adapter."""
        return any(self.names[rows.start : rows.stop])

    def session_of_rows(self, rows: range) -> AdaptedSession | None:
        """Return a session for adjacent rows; None where none of them has an adapter."""
        if not self.any_of(rows):
            return None
        entries = {site: entries[rows.start : rows.stop] for site, entries in self._rows.items()}
        return AdaptedSession(self._model.adapter_session, entries)
