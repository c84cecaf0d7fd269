"""Reading parts of large parameters, which may not fit into memory as a whole.

A stacked parameter [X, out, in] is read one expert at a time, a table of embeddings [V, E] some rows at a time. Weights
are mappings from parameter names to tensors (`LazyWeights`). One that can read parts by itself has the methods
`read_expert(name, expert)` and `read_rows(name, rows)`; of any other the whole parameter is read, and the part is cut
from it. One whose checkpoint is quantized already may have the method `read_blocks`: integers that need no rounding.
"""

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence

from torch import Tensor

from edgeformer.manifest.quantization import WeightFormat

StoredBlocks = tuple[Tensor, Tensor, Tensor]
"""Integers uint8 [N, B, L], scales float32 [N, B] and zero points uint8 [N, B] of a matrix."""

WHOLE = slice(None)
"""All rows of a matrix."""

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


def read_blocks(
    weights: Mapping[str, Tensor], name: str, form: WeightFormat, part: slice | int = WHOLE
) -> StoredBlocks | None:
    """Return the integers uint8 [N, B, L], scales float32 and zero points uint8 [N, B] that a checkpoint stores.

    None where it has none of a matrix in the blocks of a format. part: rows of the matrix; of a stacked parameter the
    expert.
    """
    reader = getattr(weights, "read_blocks", None)
    found: StoredBlocks | None = None if reader is None else reader(name, form, part)
    return found


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

    def read_blocks(self, name: str, form: WeightFormat, part: slice | int) -> StoredBlocks | None:
        """Return the blocks of a parameter, or of a part of it, that a checkpoint stores."""
        return read_blocks(next(weights for weights in self.maps if name in weights), name, form, part)
