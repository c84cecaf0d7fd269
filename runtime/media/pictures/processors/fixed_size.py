"""Resize and crop pictures to one size, bit for bit as the Pillow backend of transformers does it.

Source: transformers/image_processing_backends.py (PilBackend).
"""

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor, Resize
from edgeformer.manifest.pictures.processor_fields import PictureSize
from edgeformer.runtime.media.pictures.picture_files import Picture
from edgeformer.runtime.media.pictures.processors.processor import Processor, resized
from edgeformer.runtime.media.pictures.resample import Pixels

LONGEST_RESIZED = 1 << 16
"""Pixels of a side at most after a resize by the shortest edge: a line of 1 × 16,000 pixels would become a wall."""


class FixedSize(Processor):
    """The processor that `FixedSizeProcessor` describes."""

    config: FixedSizeProcessor

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return (0, 0): no picture is cut."""
        return 0, 0

    def pixel_values(self, picture: Picture, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of a picture, float32 [3, height, width]. Raises RequestError as `read_picture`."""
        return self.values(self.read(picture, name), name)[0]

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of a picture, float32 [1, 3, height, width]."""
        if self.config.resize is not None:
            size = resized_size(self.config.resize, pixels, name)
            pixels = resized(pixels, size, self.config.resize.resample)
        if self.config.crop is not None:
            pixels = centre_crop(pixels, self.config.crop)
        return self.normalized(pixels)[None]


def resized_size(resize: Resize, pixels: Pixels, name: str) -> tuple[int, int]:
    """Return height and width of resized pixels. Raises RequestError where a side would have too many pixels."""
    if resize.size is not None:
        return resize.size.height, resize.size.width
    assert resize.shortest_edge is not None
    height, width = pixels.shape[:2]
    short, long = min(height, width), max(height, width)
    longer = int(resize.shortest_edge * long / short)
    if longer > LONGEST_RESIZED:
        raise RequestError(
            f"{name} is {width:,} × {height:,} pixels: with a shorter side of {resize.shortest_edge}, the longer one "
            f"would have {longer:,}, and may have {LONGEST_RESIZED:,}. Cut it."
        )
    return (longer, resize.shortest_edge) if width <= height else (resize.shortest_edge, longer)


def centre_crop(pixels: Pixels, size: PictureSize) -> Pixels:
    """Return the centre of pixels, [height, width, 3], with zeros where they are smaller than `size`."""
    for axis, wanted in enumerate((size.height, size.width)):
        given = pixels.shape[axis]
        if given < wanted:
            before = (wanted - given + 1) // 2
            sides = [(0, 0)] * pixels.ndim
            sides[axis] = (before, wanted - given - before)
            pixels = np.pad(pixels, sides)
        elif given > wanted:
            start = (given - wanted) // 2
            pixels = pixels[start : start + wanted] if axis == 0 else pixels[:, start : start + wanted]
    return pixels


PROCESSOR = FixedSize
