"""bfloat16 numbers in numpy, which has no type for them: their bits, as uint16, which no graph has otherwise.

float32   s eeeeeeee mmmmmmm mmmmmmmmmmmmmmmm
bfloat16  s eeeeeeee mmmmmmm                    the upper half, rounded to nearest, ties to even
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = np.uint16
"""The type of arrays of bfloat16 numbers."""

BFLOAT16 = 16
"""ONNX's number of the type (`TensorProto.DataType`)."""


def element_type(dtype: np.dtype[Any]) -> Any:
    """Return the type by which arrays of this one are bound to a graph."""
    return BFLOAT16 if dtype == BITS else dtype


def stored(numbers: NDArray[Any], dtype: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """Return numbers in a type of caches, rounded to bfloat16 where that is its bits; bits stay as they are."""
    if np.dtype(dtype) != BITS or numbers.dtype == BITS:
        return numbers.astype(dtype, copy=False)
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(BITS)
    return np.where(np.isnan(numbers), BITS(0x7FC0), rounded)  # rounding may carry a NaN's bits to zero


def numbers_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return what an array of a cache holds: float32 for bits of bfloat16, everything else as it is."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == BITS else array
