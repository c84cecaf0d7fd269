"""The processors of all kinds. Another kind is a file in `edgeformer.manifest.pictures`, one here, and an entry."""

from edgeformer.manifest.pictures import PictureProcessor
from edgeformer.runtime.media.pictures.processors.any_resolution import AnyResolution
from edgeformer.runtime.media.pictures.processors.aspect_tiles import AspectTiles
from edgeformer.runtime.media.pictures.processors.fixed_size import FixedSize
from edgeformer.runtime.media.pictures.processors.grid_patches import GridPatches
from edgeformer.runtime.media.pictures.processors.patch_tiles import PatchTiles
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.processors.tiles import Tiles

PROCESSORS: dict[str, type[Processor]] = {
    "any_resolution": AnyResolution,
    "aspect_tiles": AspectTiles,
    "fixed_size": FixedSize,
    "grid": GridPatches,
    "patch_tiles": PatchTiles,
    "tiles": Tiles,
}
"""The classes of processors, by the kind of their config."""


def new_processor(config: PictureProcessor) -> Processor:
    """Return the processor of a config."""
    return PROCESSORS[config.kind](config)
