"""A stand-in for an image processor that transformers has for torchvision only, where that is not installed.

transformers' processor of texts and pictures asks it how a picture is cut, and writes marks and placeholders for that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.runtime.media.pictures.processors.patch_tiles import PatchTiles


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
        sizes = [self._processor.grid(*each.shape[:2]) for each in pictures]
        values = np.concatenate([self._processor.values(each) for each in pictures])
        grids = np.concatenate([self._processor.patch_grid(*each.shape[:2]) for each in pictures])
        return self._processor.for_library(values, grids) | {
            "image_rows": [max(rows, 1) for rows, *_ in sizes],
            "image_cols": [max(columns, 1) for _, columns, *_ in sizes],
            "image_sizes": [[side * self._processor.config.side for side in whole] for _, _, *whole in sizes],
        }
