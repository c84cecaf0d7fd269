"""The base class of models that read pictures: their processor, and runs of their tower."""

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import VisionConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.media.pictures.processors.fixed_size import FixedSize
from edgeformer.runtime.request_values import count, is_list, shown
from edgeformer.runtime.tasks.model import Model, output_names

PICTURES = 4
"""Pictures per run, unless the call says otherwise. More are no faster on a CPU, and take more memory."""

VECTORS = ("image_embeds", "pooler_output")
"""Outputs that are the vector of a picture, the first that a graph has."""

Features = NDArray[np.float32]


class PictureReader(Model):
    """A model whose main graph is a tower of pictures.

    A picture is the path of a file, its bytes, an image of Pillow, or an array uint8 [height, width, 3].
    """

    @property
    def tower(self) -> VisionConfig:
        """The config of the tower."""
        return cast(VisionConfig, self.manifest.model)  # `Manifest` has checked it

    @cached_property
    def processor(self) -> FixedSize:
        """The processor, which makes pixel values of pictures."""
        assert isinstance(self.manifest.pictures, FixedSizeProcessor), "every manifest of this task has one"
        return FixedSize(self.manifest.pictures)

    def pixel_values(self, pictures: Picture | Sequence[Picture]) -> Features:
        """Return what the graph reads of pictures: float32 [N, 3, height, width], or [3, height, width] for one.

        Raises RequestError for what is no picture, or one that cannot be read; it says which of several.
        """
        values = [self._values(*named) for named in named_pictures(pictures)]
        return values[0] if is_picture(pictures) else np.stack(values)

    def run(self, pictures: Sequence[Picture], outputs: Sequence[str] | None = None) -> dict[str, Features]:
        """Run pictures as one batch; return the graph's outputs by name.

        outputs: names of the outputs to return, None for all. last_hidden_state is float32 [B, tokens, E]: the states
        of learned tokens, then those of patches row by row. Raises RequestError as `pixel_values`, and for an unknown
        output.
        """
        if is_picture(pictures):
            raise RequestError("run takes a list of pictures. Give it one, of at least one picture.")
        return self.run_values(self.pixel_values(pictures), outputs)

    def run_values(self, pixel_values: Features, outputs: Sequence[str] | None = None) -> dict[str, Features]:
        """Run pixel values, float32 [B, 3, height, width], as `run` runs pictures."""
        names = output_names(self.session, outputs)
        return dict(zip(names, self.session.run(names, {"pixel_values": pixel_values}), strict=True))

    def picture_vectors(self, pictures: Picture | Sequence[Picture], batch_size: int) -> Features:
        """Return the vectors of pictures [N, D], also for one; see `VisionEncoder.embed`."""
        return self.pooled({self.vector: self.in_batches(pictures, self.vector, batch_size)})

    def embed_values(self, pixel_values: Sequence[Features]) -> Features:
        """Return the vectors of pictures, as `embed` does, of their pixel values [3, height, width]."""
        return self.pooled(self.run_values(np.stack(pixel_values), [self.vector]))

    @property
    def vector(self) -> str:
        """The output that a vector is made of."""
        known = [output.name for output in self.session.get_outputs()]
        return next((name for name in VECTORS if name in known), "last_hidden_state")

    def pooled(self, outputs: dict[str, Features]) -> Features:
        """Return vectors [N, D] of the output that they are made of."""
        vectors = outputs[self.vector]
        if self.vector != "last_hidden_state":
            return vectors
        return vectors[:, 0] if self.tower.prefix_tokens else vectors.mean(1)

    def in_batches(self, pictures: Picture | Sequence[Picture], output: str, batch_size: int) -> Features:
        """Return an output of pictures [N, …], `batch_size` at once, so that memory holds the pixels of so many."""
        size, named, found = count("batch_size", batch_size), named_pictures(pictures), []
        for start in range(0, len(named), size):
            values = np.stack([self._values(*each) for each in named[start : start + size]])
            found.append(self.run_values(values, [output])[output])
        return np.concatenate(found)

    def _values(self, picture: Picture, name: str) -> Features:
        return self.processor.pixel_values(picture, name)


def named_pictures(pictures: Picture | Sequence[Picture]) -> list[tuple[Picture, str]]:
    """Return pictures, each with its name in errors. Raises RequestError for what is neither a picture nor a list."""
    if is_picture(pictures):
        return [(pictures, "the picture")]
    several = cast("Sequence[Picture]", pictures)
    if not is_list(several) or len(several) == 0:
        raise RequestError(f"pictures is {shown(pictures)}; it must be a picture, or a list of at least one.")
    return [(picture, f"picture {row} of the list") for row, picture in enumerate(several)]
