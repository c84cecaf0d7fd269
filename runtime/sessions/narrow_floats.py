"""Floats that numpy has no type for: their bits, in types of integers that no cache has otherwise.

float32       s eeeeeeee mmmmmmm mmmmmmmmmmmmmmmm
bfloat16      s eeeeeeee mmmmmmm                      the upper half, rounded to nearest, ties to even; as uint16
float8e4m3fn  s eeee mmm                              numbers up to 448, no infinities, one NaN a sign; as uint8

Source: arXiv 2209.05433 for float8e4m3fn; onnx.ai/onnx/technical/float8.html for how a Cast to it saturates.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = np.uint16
"""The type of arrays of bfloat16 numbers."""

FLOAT8 = np.uint8
"""The type of arrays of float8e4m3fn numbers."""

ELEMENT_TYPES: dict[np.dtype[Any], int] = {np.dtype(BFLOAT16): 16, np.dtype(FLOAT8): 17}
"""ONNX's numbers of these types (`TensorProto.DataType`)."""

FLOAT8_NAN, FLOAT8_SIGN = 0x7F, 0x80
"""Bits of float8e4m3fn."""


def _float8_numbers() -> NDArray[np.float32]:
    """Return what each of the 256 bytes means: float32 [256]."""
    bits = np.arange(256)
    exponents, mantissas = bits >> 3 & 15, bits & 7
    # An exponent of 0 has no leading one, and the same step as an exponent of 1.
    magnitudes = np.ldexp(np.where(exponents == 0, mantissas, mantissas + 8), np.maximum(exponents, 1) - 10)
    magnitudes[bits & FLOAT8_NAN == FLOAT8_NAN] = np.nan
    return np.where(bits & FLOAT8_SIGN, -magnitudes, magnitudes).astype(np.float32)


FLOAT8_NUMBERS = _float8_numbers()
FLOAT8_MIDDLES = (FLOAT8_NUMBERS[: FLOAT8_NAN - 1] + FLOAT8_NUMBERS[1:FLOAT8_NAN]) / 2
"""The numbers halfway between a positive number and the next, float32 [126]; float32 has them exactly."""


def element_type(dtype: np.dtype[Any]) -> Any:
    """Return the type by which arrays of this one are bound to a graph."""
    return ELEMENT_TYPES.get(np.dtype(dtype), dtype)


def stored(numbers: NDArray[Any], dtype: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """Return numbers in a type of caches, rounded where that is one of the bits here; bits stay as they are."""
    if np.dtype(dtype) not in ELEMENT_TYPES or numbers.dtype == dtype:
        return numbers.astype(dtype, copy=False)
    wide = np.ascontiguousarray(numbers, np.float32)
    return (_bfloat16 if dtype == BFLOAT16 else _float8)(wide).reshape(numbers.shape)


def numbers_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return what an array of a cache holds: float32 for bits, everything else as it is."""
    if array.dtype == BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return FLOAT8_NUMBERS[array] if array.dtype == FLOAT8 else array


def _bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(BFLOAT16)
    return np.where(np.isnan(numbers), BFLOAT16(0x7FC0), rounded)  # rounding may carry a NaN's bits to zero


def _float8(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round to nearest, ties to even; what is larger than the largest number becomes that, as in ONNX's Cast."""
    magnitudes = np.abs(numbers)
    below = np.searchsorted(FLOAT8_MIDDLES, magnitudes)
    tied = magnitudes == FLOAT8_MIDDLES[np.minimum(below, len(FLOAT8_MIDDLES) - 1)]
    bits = np.where(tied, below + (below & 1), below)  # an odd byte has an odd mantissa
    bits = np.where(np.isnan(numbers), FLOAT8_NAN, bits)
    return (bits | np.where(np.signbit(numbers), FLOAT8_SIGN, 0)).astype(FLOAT8)
