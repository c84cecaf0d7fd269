"""bitsandbytes: numbers of four bits from a table (nf4, fp4), and int8 with a scale for each output.

    X.weight  uint8 [N · K / 2, 1], the first number of two in the high half; X.weight.absmax, a scale for each block of
              numbers, or (nested) uint8 for a table X.weight.nested_quant_map with scales X.weight.nested_absmax;
              X.weight.quant_map, float32 [16]; X.weight.quant_state.bitsandbytes__nf4, JSON in bytes
    X.weight  int8 [N, K], X.SCB float32 [N]: a weight is integer · SCB / 127

Source: arXiv 2305.14314 and 2208.07339; bitsandbytes' functional.py.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgeformer.checkpoints.quantized.grouped_integers import Grouped, GroupedSlice
from edgeformer.checkpoints.quantized.stored import Stored, matrices, read, whole_shape
from edgeformer.errors import WeightsError

STATE = "weight.quant_state.bitsandbytes__"
"""Beginning of the last part of the name of the tensor that describes a matrix; the kind of its table follows."""
LARGEST = 127
"""The integer that SCB, the largest magnitude of an output, means."""


@dataclass(frozen=True)
class TableSlice:
    """A matrix whose numbers are entries of a table, read when it is indexed."""

    stored: Stored
    module: str
    state: Mapping[str, Any]

    def get_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        shape: list[int] = self.state["shape"]
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows of the matrix, float32; all of it is read."""
        name = f"{self.module}.weight"
        packed, table = read(self.stored, name).flatten(), read(self.stored, f"{name}.quant_map").float()
        numbers = table[torch.stack((packed >> 4, packed & 15), -1).flatten().int()][: math.prod(self.get_shape())]
        scales = self._scales(name).repeat_interleave(self.state["blocksize"])[: len(numbers)]
        return (numbers * scales).reshape(self.get_shape())[index]

    def _scales(self, name: str) -> Tensor:
        scales = read(self.stored, f"{name}.absmax")
        if f"{name}.nested_absmax" not in self.stored:
            return scales.float()
        table, outer = (read(self.stored, f"{name}.{each}").float() for each in ("nested_quant_map", "nested_absmax"))
        factors = outer.repeat_interleave(self.state["nested_blocksize"])[: len(scales)]
        return table[scales.int()] * factors + self.state["nested_offset"]


def bits_and_bytes_matrices(options: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """Return the matrices of a checkpoint by the names of their modules. Raises WeightsError for other shapes."""
    found: dict[str, Any] = {}
    for name in (name for name in stored if STATE in name):
        module = name.partition(f".{STATE}")[0]
        state = _state(name, bytes(read(stored, name).flatten().tolist()))
        whole_shape(stored, f"{module}.weight", (-(-math.prod(state["shape"]) // 2), 1))
        whole_shape(stored, f"{module}.weight.quant_map", (16,))
        whole_shape(stored, f"{module}.weight.absmax", (-(-math.prod(state["shape"]) // state["blocksize"]),))
        found[module] = TableSlice(stored, module, state)
    for module in matrices(stored, "SCB"):
        outputs, inputs = whole_shape(stored, f"{module}.weight", 2)
        whole_shape(stored, f"{module}.SCB", (outputs,))
        found[module] = GroupedSlice((outputs, inputs), 8, partial(_rows, stored, module))
    return found


def _state(name: str, content: bytes) -> dict[str, Any]:
    """Return what a tensor says of a matrix. Raises WeightsError for what is no JSON, or lacks a size."""
    try:
        state = json.loads(content)
        sizes = [*state["shape"], state["blocksize"]]
    except (ValueError, KeyError, TypeError):
        sizes = []
    if len(sizes) != 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise WeightsError(
            f"{name} does not say the shape of its matrix and its blocks. Download the checkpoint again."
        )
    found: dict[str, Any] = state
    return found


def _rows(stored: Stored, module: str) -> Grouped:
    integers = (read(stored, f"{module}.weight").short() + 128).byte()
    return Grouped(integers, read(stored, f"{module}.SCB").float()[:, None] / LARGEST)
