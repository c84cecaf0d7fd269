"""Make what a graph reads of pictures: pixel values, by the numbers in the manifest."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS, Resample
from edgeformer.runtime.media.pictures import resample
from edgeformer.runtime.media.pictures.picture_files import Picture, read_picture
from edgeformer.runtime.media.pictures.resample import Pixels

FIRST_PILLOW = 13
"""First version of Pillow that resizes as `resample` does."""


class Processor(ABC):
    """Base of processors, which make values of pictures by the numbers of a `PictureProcessor`."""

    def __init__(self, config: PictureProcessor):
        self.config = config

    salt = b""
    """Bytes that tell the digests of pictures from those of another processor of the same model."""

    def among(self, pictures: int) -> "Processor":
        """Return the processor of pictures of which a prompt has so many, which this one may be itself."""
        return self

    def packing(self, height: int, width: int) -> "Packing | None":
        """Return how the states of a picture of this size are put together; None where they stand in order."""
        return None

    @property
    def limit(self) -> tuple[int, int] | None:
        """The size of a picture whose states are interpolated, because they are too many; None where none is."""
        return None

    def read(self, picture: Picture, name: str = "the picture") -> Pixels:
        """Return the pixels of a picture, uint8 [H, W, 3]. Raises RequestError as `read_picture`."""
        return read_picture(picture, white_background=self.config.white_background, name=name)

    @property
    def low_detail(self) -> "Processor":
        """The processor that makes fewest tokens of a picture, which this one may be itself."""
        return self

    @abstractmethod
    def grid(self, height: int, width: int) -> tuple[int, ...]:
        """Return the rows and columns that a picture of this size is cut into; (0, 0) where it is not cut.

        A processor may say more about the size, which its placeholder reads.
        """

    @abstractmethod
    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return what a graph reads of a picture, float32 [N, 3, height, width]: of several, where it is cut.

        Of a picture of any size they are patches, float32 [P, numbers].

        Raises RequestError for a picture of a shape that cannot be resized.
        """

    def patch_grid(self, height: int, width: int) -> NDArray[np.int64] | None:
        """Return the rows and columns of patches of each picture that the tower reads, [[1, rows, columns], …].

        None where the values of a picture are no patches, and all that the tower reads have one size.
        """
        return None

    def for_library(self, values: NDArray[Any], grids: NDArray[np.int64] | None) -> dict[str, NDArray[Any]]:
        """Return values of pictures, and what `patch_grid` returns of them, as transformers has them, by its names."""
        return {"pixel_values": values}

    def normalized(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return the values of pixels [H, W, 3], float32 [3, H, W]."""
        return np.stack([self._levels[channel][pixels[..., channel]] for channel in range(CHANNELS)])

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """The value of each of the 256 levels, float32 [3, 256], rounded as transformers rounds them."""
        config = self.config
        levels = np.arange(256, dtype=np.float64)
        values = (levels if config.scale is None else levels * config.scale).astype(np.float32)
        if config.mean is None or config.std is None:
            return np.tile(values, (CHANNELS, 1))
        mean, std = (np.array(each, np.float32)[:, None] for each in (config.mean, config.std))
        normalized: NDArray[np.float32] = (values - mean) / std
        return normalized


@dataclass(frozen=True)
class Packing:
    """The states of a picture as sums of those that the tower computed of all its tiles.

    Attributes:
        rows: which states are added, int64 [T, n].
        weights: their factors, float64 [T, n]; all are 1 where n is 1.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float64]

    def packed(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the states of a picture [T, E], of those of its tiles [N, E]."""
        if self.rows.shape[1] == 1:
            return states[self.rows[:, 0]]
        weights = self.weights.astype(np.float32)
        found = states[self.rows[:, 0]] * weights[:, :1]
        for tap in range(1, self.rows.shape[1]):
            found += states[self.rows[:, tap]] * weights[:, tap : tap + 1]
        return found


def resized(pixels: Pixels, size: tuple[int, int], kind: Resample) -> Pixels:
    """Return pixels [height, width, 3] of another size: by Pillow where a version with these bits is installed."""
    if not _has_pillow():
        return resample.resize(pixels, *size, kind)
    from PIL import Image

    height, width = size
    filters: Any = Image.Resampling
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), filters[kind.upper()]))


def _has_pillow() -> bool:
    """Return whether the Pillow that `resample` describes is installed."""
    if find_spec("PIL") is None:
        return False
    import PIL

    return int(PIL.__version__.partition(".")[0]) >= FIRST_PILLOW
