"""The processors of pictures: every number of what happens to a picture before a graph reads it.

A file is a kind: its fields in the manifest, the classes of transformers whose files it is read of, and what others ask
of it. Its pixel values are computed by its class in `edgeformer.runtime.media.pictures.processors`.
"""

from edgeformer.manifest.pictures.any_resolution import AnyResolutionProcessor
from edgeformer.manifest.pictures.aspect_tiles import AspectTilesProcessor
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor
from edgeformer.manifest.pictures.grid import GridProcessor
from edgeformer.manifest.pictures.patch_tiles import PatchTilesProcessor
from edgeformer.manifest.pictures.tiles import TilesProcessor

PictureProcessor = (
    FixedSizeProcessor
    | GridProcessor
    | TilesProcessor
    | AspectTilesProcessor
    | AnyResolutionProcessor
    | PatchTilesProcessor
)
"""The kinds of processors, told apart by `kind`."""
