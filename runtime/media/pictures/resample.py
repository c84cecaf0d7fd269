"""Resize pictures bit for bit as Pillow does, in numpy, or as torch does.

    small = resize(pixels, 224, 224, "bicubic")     # uint8 [H, W, 3]

Pillow 13 computes the same faster, and is used where it is installed. This file states what must come out: two passes
over weights of 22 bits, each rounded to 8 bits. Earlier versions of Pillow always resize the width first, which changes
a few values by one level. Source: Pillow's src/libImaging/Resample.c and, for `nearest`, Geometry.c.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.processor_fields import Resample

Pixels = NDArray[np.uint8]
"""A picture of 8 bits per channel, [H, W, channels]."""

_BITS = 22
"""Bits of a weight behind the point."""


def _sinc(x: NDArray[np.float64]) -> NDArray[np.float64]:
    angle = np.where(x == 0, 1.0, x * np.pi)
    return np.where(x == 0, 1.0, np.sin(angle) / angle)


def _box(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0.0)


def _hamming(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    return np.where(x < 1, _sinc(x) * (0.54 + 0.46 * np.cos(x * np.pi)), 0.0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x, a = np.abs(x), -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


class _Filter(NamedTuple):
    """A filter, and how far it reaches to each side, in pixels of the larger picture."""

    weight: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    support: float


_FILTERS: dict[Resample, _Filter] = {
    "box": _Filter(_box, 0.5),
    "bilinear": _Filter(_bilinear, 1.0),
    "hamming": _Filter(_hamming, 1.0),
    "bicubic": _Filter(_bicubic, 2.0),
    "lanczos": _Filter(_lanczos, 3.0),
}


def resize_as_torch(pixels: Pixels, height: int, width: int, resample: Resample) -> Pixels:
    """Return a picture of another size as torch resizes uint8 (`interpolate`, antialias), and so torchvision.

    The width comes first, and weights have as many bits as fit into 16. Source: torch's UpSampleKernel.cpp.
    """
    for axis, wanted in ((1, width), (0, height)):
        if pixels.shape[axis] != wanted:
            pixels = _pass(pixels.swapaxes(0, axis), wanted, _FILTERS[resample], short=True).swapaxes(0, axis)
    return np.ascontiguousarray(pixels)


def resize(pixels: Pixels, height: int, width: int, resample: Resample) -> Pixels:
    """Return a picture [height, width, channels] of another size; pixels: uint8 [H, W, channels]."""
    if resample == "nearest":
        rows, columns = _nearest(pixels.shape[0], height), _nearest(pixels.shape[1], width)
        return pixels[rows][:, columns]
    less_height, less_width = pixels.shape[0] - height, pixels.shape[1] - width
    height_first = less_height > max(0, 2 * less_width)
    for axis, wanted in [(0, height), (1, width)] if height_first else [(1, width), (0, height)]:
        if pixels.shape[axis] != wanted:
            pixels = _pass(pixels.swapaxes(0, axis), wanted, _FILTERS[resample]).swapaxes(0, axis)
    return np.ascontiguousarray(pixels)


def _nearest(size: int, wanted: int) -> NDArray[np.int64]:
    """Return which of `size` pixels each of `wanted` is; Pillow adds up steps, rounding each sum."""
    step = size / wanted
    places = np.add.accumulate(np.concatenate(([step * 0.5], np.full(wanted - 1, step))))
    return np.minimum(places.astype(np.int64), size - 1)


def _pass(pixels: Pixels, wanted: int, kind: _Filter, short: bool = False) -> Pixels:
    """Return the first axis of pixels [N, M, channels] at another size. short: by weights of 16 bits."""
    first, exact = _weights(pixels.shape[0], wanted, kind)
    fitting = range(_BITS) if short else ()
    # Of 16 bits, one is the sign. Weights of a picture that becomes very small fit with all bits.
    bits = next((bits for bits in fitting if int(0.5 + exact.max() * (2 << bits)) >= 1 << 15), _BITS)
    scaled = exact * (1 << bits)
    weights = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    total = np.full((wanted, *pixels.shape[1:]), 1 << (bits - 1), np.int32)  # a half, to round
    last = pixels.shape[0] - 1
    for tap in range(weights.shape[1]):
        # Behind the last pixel all weights are zero.
        total += pixels[np.minimum(first + tap, last)] * weights[:, tap, None, None]
    return np.clip(total >> bits, 0, 255).astype(np.uint8)


def _weights(size: int, wanted: int, kind: _Filter) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return for each of `wanted` pixels the first pixel that it reads, and its weights of that and the next ones."""
    scale = size / wanted
    stretch = max(scale, 1.0)
    support = kind.support * stretch
    centers = (np.arange(wanted) + 0.5) * scale
    first = np.maximum((centers - support + 0.5).astype(np.int64), 0)
    count = np.minimum((centers + support + 0.5).astype(np.int64), size) - first
    taps = np.arange(int(np.ceil(support)) * 2 + 1)
    weights = kind.weight((taps + first[:, None] - centers[:, None] + 0.5) * (1.0 / stretch))
    weights[taps >= count[:, None]] = 0
    total = np.add.accumulate(weights, 1)[:, -1:]  # one after the other, since each sum is rounded
    return first, np.divide(weights, total, out=weights, where=total != 0)
