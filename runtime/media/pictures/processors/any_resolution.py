"""Fit pictures into grids of tiles, and put the states of the tiles together: what LLaVA-NeXT and OneVision see.

    whole, tile, tile, …  ──→ tower ──→  states of the whole picture, then rows of all tiles, each ended by a newline

Source: transformers/models/llava_next/image_processing_pil_llava_next.py, LlavaNextModel.pack_image_features.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.pictures.any_resolution import AnyResolutionProcessor
from edgeformer.manifest.pictures.processor_fields import CHANNELS
from edgeformer.runtime.media.pictures.processors.processor import Packing, Processor, resized
from edgeformer.runtime.media.pictures.processors.tiles import cut
from edgeformer.runtime.media.pictures.resample import Pixels


class AnyResolution(Processor):
    """The processor that `AnyResolutionProcessor` describes."""

    config: AnyResolutionProcessor

    def among(self, pictures: int) -> Processor:
        """Return the processor of pictures of which a prompt has so many."""
        return self._squares if self.config.squares and pictures != 1 else self

    @cached_property
    def low_detail(self) -> Processor:
        """The processor that makes a square of one tile, where the model knows any, or cuts into the fewest tiles."""
        if self.config.squares:
            return self._squares
        fewest = min(rows * columns for rows, columns in self.config.grids)
        grids = tuple(grid for grid in self.config.grids if grid[0] * grid[1] == fewest)
        return self if grids == self.config.grids else AnyResolution(replace(self.config, grids=grids))

    @property
    def limit(self) -> tuple[int, int] | None:
        """The size of the picture of most states; None where there is no limit of states."""
        if self.config.max_tiles is None:
            return None
        rows, columns = max(self.config.grids, key=lambda grid: grid[0] * grid[1])
        return rows * self.config.tile, columns * self.config.tile

    @cached_property
    def _squares(self) -> Processor:
        return Squares(self.config)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of states of a picture of this size, beside those of the whole picture."""
        return self._states(height, width).shrunk

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of the whole picture, and of the tiles row by row, float32 [N, 3, tile, tile]."""
        tile, resample = self.config.tile, self.config.resample
        rows, columns = self._best_grid(*pixels.shape[:2])
        height, width = fitted_size(pixels.shape[0], pixels.shape[1], rows * tile, columns * tile)
        fitted = centred(resized(pixels, (height, width), resample), rows * tile, columns * tile)
        tiles = [resized(pixels, (tile, tile), resample), *cut(fitted, tile, tile)]
        return np.stack([self.normalized(each) for each in tiles])

    def packing(self, height: int, width: int) -> Packing:
        """Return how the states of the tiles of a picture of this size, [N · (P² + 1), E], are put together."""
        side = self.config.patches
        states, tiles = self._states(height, width), self._best_grid(height, width)
        newline, of_tile = side**2, side**2 + 1
        y, vertical = line_taps(states.unpadded[0], states.shrunk[0])
        x, horizontal = line_taps(states.unpadded[1], states.shrunk[1])
        y, x = y + states.top, x + states.left
        # [rows, columns, 2, 2]: the tile and the patch of each state that is read
        tile = (y // side)[:, None, :, None] * tiles[1] + (x // side)[None, :, None, :] + 1
        patch = (y % side)[:, None, :, None] * side + (x % side)[None, :, None, :]
        rows = (tile * of_tile + patch).reshape(*states.shrunk, 4)
        weights = (vertical[:, None, :, None] * horizontal[None, :, None, :]).reshape(*states.shrunk, 4)
        ends = np.full((states.shrunk[0], 1, 4), newline)
        first = np.array([1.0, 0.0, 0.0, 0.0])
        whole = np.repeat(np.arange(newline)[:, None], 4, 1)
        used = 1 if states.shrunk == states.unpadded else 4
        in_rows = np.concatenate((rows, ends), 1).reshape(-1, 4)
        by_rows = np.concatenate((weights, np.broadcast_to(first, (len(ends), 1, 4))), 1).reshape(-1, 4)
        found = np.concatenate((whole, in_rows))
        return Packing(found[:, :used], np.concatenate((np.broadcast_to(first, whole.shape), by_rows))[:, :used])

    def _best_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles that keep the most pixels of a picture, and of these the fewest."""
        best, kept, wasted = (0, 0), 0, 0
        for grid in self.config.grids:
            tall, wide = grid[0] * self.config.tile, grid[1] * self.config.tile
            scale = min(wide / width, tall / height)
            pixels = min(int(width * scale) * int(height * scale), width * height)
            waste = tall * wide - pixels
            if best == (0, 0) or pixels > kept or (pixels == kept and waste < wasted):
                best, kept, wasted = grid, pixels, waste
        return best

    def _states(self, height: int, width: int) -> "States":
        """Return which rows and columns of the states of all tiles show a picture of this size."""
        config, tiles = self.config, self._best_grid(height, width)
        tall, wide = tiles[0] * config.patches, tiles[1] * config.patches
        top = left = 0
        if width / height > wide / tall:
            top = (tall - int(round(height * (wide / width), 7))) // 2
        else:
            left = (wide - int(round(width * (tall / height), 7))) // 2
        unpadded = (tall - 2 * top, wide - 2 * left)
        ratio = 0.0
        if config.max_tiles is not None:
            ratio = math.sqrt(unpadded[0] * unpadded[1] / (config.max_tiles * config.patches**2))
        shrunk = (int(unpadded[0] // ratio), int(unpadded[1] // ratio)) if ratio > 1.1 else unpadded
        return States(top, left, unpadded, shrunk)


@dataclass(frozen=True)
class States:
    """The states of all tiles that show a picture: the first row and column, how many, and how many stay of them."""

    top: int
    left: int
    unpadded: tuple[int, int]
    shrunk: tuple[int, int]


class Squares(Processor):
    """The processor of pictures that are not alone in a prompt, where `AnyResolutionProcessor.squares` says so."""

    config: AnyResolutionProcessor
    salt = b"square"

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return (1, 0): a newline follows the states of the whole picture."""
        return 1, 0

    def values(self, pixels: Pixels, name: str = "the picture") -> NDArray[np.float32]:
        """Return the values of the picture in the centre of a square, float32 [1, 3, tile, tile]."""
        assert self.config.mean is not None, "`AnyResolutionProcessor` has checked it"
        height, width = pixels.shape[:2]
        side, tile = max(height, width), self.config.tile
        square = np.empty((side, side, CHANNELS), np.uint8)
        square[:] = [int(each * 255) for each in self.config.mean]
        top, left = (side - height) // 2, (side - width) // 2
        square[top : top + height, left : left + width] = pixels
        return self.normalized(resized(square, (tile, tile), self.config.resample))[None]


def fitted_size(height: int, width: int, tall: int, wide: int) -> tuple[int, int]:
    """Return the height and width of a picture that is resized to the largest with its aspect in another size."""
    by_width, by_height = wide / width, tall / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), tall), wide
    return tall, min(math.ceil(width * by_height), wide)


def centred(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return pixels in the centre of zeros."""
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    found = np.zeros((height, width, CHANNELS), np.uint8)
    found[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return found


def line_taps(size: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the two of `size` places that each of `wanted` reads, int64 [wanted, 2], and their weights.

    It is torch's bilinear interpolation without aligned corners.
    """
    at = np.maximum((np.arange(wanted) + 0.5) * (size / max(wanted, 1)) - 0.5, 0.0)
    first = np.minimum(at.astype(np.int64), size - 1)
    part = at - first
    return np.stack((first, np.minimum(first + 1, size - 1)), -1), np.stack((1 - part, part), -1)


PROCESSOR = AnyResolution
