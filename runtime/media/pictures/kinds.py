"""The processors of all kinds. Another kind is a config in `edgeformer.manifest.pictures`, its class, and an entry."""

from edgeformer.manifest.pictures import PictureProcessor
from edgeformer.runtime.media.pictures.any_resolution import AnyResolution
from edgeformer.runtime.media.pictures.aspect_tiles import AspectTiles
from edgeformer.runtime.media.pictures.grid_patches import GridPatches
from edgeformer.runtime.media.pictures.patch_tiles import PatchTiles
from edgeformer.runtime.media.pictures.processor import FixedSize, Processor
from edgeformer.runtime.media.pictures.tiles import Tiles

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
