"""Stand-ins for image processors that transformers has for torchvision only, where that is not installed.

transformers' processor of texts and pictures asks them how a picture is cut, and writes marks and placeholders for
that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.runtime.media.pictures.processors.patch_tiles import PatchTiles
from edgeformer.runtime.media.pictures.processors.processor import Processor


class StandIn:
    """An image processor with the results of transformers' own, made by the bundle's processor."""

    def __init__(self, processor: Processor):
        self._processor = processor

    def fetch_images(self, images: Any) -> Any:
        """Return pictures, which are none to be fetched."""
        return images

    def __call__(self, images: Sequence[Sequence[Any]], **options: object) -> dict[str, Any]:
        """Return pixel values of pictures, and how each is cut."""
        pictures = [self._processor.read(picture) for row in images for picture in row]
        sizes = [each.shape[:2] for each in pictures]
        values = np.concatenate([self._processor.values(each) for each in pictures])
        found = [self._processor.patch_grid(*size) for size in sizes]
        grids = np.concatenate([each for each in found if each is not None])
        cuts = [self._processor.grid(*size) for size in sizes]
        return self._processor.for_library(values, grids) | self._cuts(cuts)

    def _cuts(self, cuts: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        """Return what processors of texts and pictures read of `Processor.grid` of each picture."""
        return {"num_soft_tokens_per_image": [rows * columns for rows, columns in cuts]}


class TilesStandIn(StandIn):
    """A stand-in for `Lfm2VlImageProcessor`."""

    use_thumbnail = True
    _processor: PatchTiles

    def __init__(self, processor: PatchTiles):
        super().__init__(processor)
        config = processor.config
        self.tile_size, self.encoder_patch_size, self.downsample_factor = config.tile, config.patch, config.square

    def _cuts(self, cuts: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        return {
            "image_rows": [max(rows, 1) for rows, *_ in cuts],
            "image_cols": [max(columns, 1) for _, columns, *_ in cuts],
            "image_sizes": [[side * self._processor.config.side for side in whole] for _, _, *whole in cuts],
        }
