"""A stand-in for an image processor that transformers has for torchvision only, where that is not installed.

transformers' processor of texts and pictures asks it how a picture is cut, and writes marks and placeholders for that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.runtime.media.pictures.patch_tiles import PatchTiles


class StandIn:
    """An image processor with the results of `Lfm2VlImageProcessor`, made by the bundle's own processor."""

    use_thumbnail = True

    def __init__(self, processor: PatchTiles):
        self._processor, config = processor, processor.config
        self.tile_size, self.encoder_patch_size, self.downsample_factor = config.tile, config.patch, config.square

    def fetch_images(self, images: Any) -> Any:
        """Return pictures, which are none to be fetched."""
        return images

    def __call__(self, images: Sequence[Sequence[Any]], **options: object) -> dict[str, Any]:
        """Return pixel values of pictures, and how each is cut."""
        pictures = [self._processor.read(picture) for row in images for picture in row]
        shapes = [self._processor.patch_grid(*each.shape[:2])[:, 1:] for each in pictures]
        grids = [self._processor.grid(*each.shape[:2]) for each in pictures]
        values = [part for each in pictures for part in patches_by_rows(self._processor, each)]
        most = max(map(len, values))
        return {
            "pixel_values": np.stack([np.pad(each, ((0, most - len(each)), (0, 0))) for each in values]),
            "pixel_attention_mask": np.stack([(np.arange(most) < len(each)).astype(np.int32) for each in values]),
            "spatial_shapes": np.concatenate(shapes),
            "image_rows": [max(rows, 1) for rows, *_ in grids],
            "image_cols": [max(columns, 1) for _, columns, *_ in grids],
            "image_sizes": [[side * self._processor.config.side for side in whole] for _, _, *whole in grids],
        }


def patches_by_rows(processor: PatchTiles, pixels: Any) -> list[Any]:
    """Return the patches of each picture that the tower reads, row by row, as transformers has them."""
    square, grids = processor.config.square, processor.patch_grid(*pixels.shape[:2])
    parts = np.split(processor.values(pixels), np.cumsum(grids.prod(1))[:-1])
    return [
        part.reshape(rows // square, columns // square, square, square, -1).swapaxes(1, 2).reshape(len(part), -1)
        for part, (_, rows, columns) in zip(parts, grids.tolist(), strict=True)
    ]
