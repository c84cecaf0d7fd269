"""Reading parts of large parameters, which may not fit into memory as a whole.

A stacked parameter [X, out, in] is read one expert at a time, a table of embeddings [V, E] some rows at a time. Weights
are mappings from parameter names to tensors (`LazyWeights`). One that can read parts by itself has the methods
`read_expert(name, expert)` and `read_rows(name, rows)`; of any other the whole parameter is read, and the part is cut
from it.
"""

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence

from torch import Tensor

LARGE = 2**24
"""Elements of a parameter above which its experts, or some of its rows, are read by themselves: 64 MiB in float32."""


def is_stacked(name: str) -> bool:
    """Whether a parameter of our own models has its experts along its first axis (`layers.experts.StackedLinear`)."""
    return ".experts." in name


def read_expert(weights: Mapping[str, Tensor], name: str, expert: int) -> Tensor:
    """Return weights[name][expert]."""
    reader = getattr(weights, "read_expert", None)
    part: Tensor = weights[name][expert] if reader is None else reader(name, expert)
    return part


def is_large(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape is to be read expert by expert."""
    return len(shape) == 3 and math.prod(shape) > LARGE


def read_rows(weights: Mapping[str, Tensor], name: str, rows: slice | Tensor) -> Tensor:
    """Return weights[name][rows]; rows: a slice, or indices int64."""
    reader = getattr(weights, "read_rows", None)
    part: Tensor = weights[name][rows] if reader is None else reader(name, rows)
    return part


def row_slices(shape: Sequence[int]) -> list[slice]:
    """Return the slices of rows in which a matrix is read, of `LARGE` elements at most; one for a small matrix."""
    rows, width = shape
    size = max(1, LARGE // max(1, width)) if rows * width > LARGE else max(1, rows)
    return [slice(start, start + size) for start in range(0, max(1, rows), size)]


class LazyWeights(Mapping[str, Tensor]):
    """Weights that are read when they are asked for, and not to find out whether there is one of a name."""

    def __contains__(self, name: object) -> bool:
        # That of Mapping reads the tensor.
        return any(name == known for known in self)


class FirstOf(ChainMap[str, Tensor]):
    """Several mappings of weights as one; each name means the first that has it."""

    def read_expert(self, name: str, expert: int) -> Tensor:
        """Return one expert of a stacked parameter."""
        return read_expert(next(weights for weights in self.maps if name in weights), name, expert)

    def read_rows(self, name: str, rows: slice | Tensor) -> Tensor:
        """Return some rows of a parameter."""
        return read_rows(next(weights for weights in self.maps if name in weights), name, rows)
