"""The base class of models that read pictures: their processor, and runs of their tower."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import PictureTower
from edgeformer.errors import RequestError
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture, picture_size
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.fixed_size import FixedSize
from edgeformer.runtime.media.pictures.processors.patch_budget import PatchBudget
from edgeformer.runtime.request_values import count, is_list, shown
from edgeformer.runtime.tasks.model import Model, output_names
from edgeformer.runtime.tasks.vision.tower_inputs import tower_inputs

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
    def tower(self) -> PictureTower:
        """The config of the tower."""
        return cast(PictureTower, self.manifest.model)  # `Manifest` has checked it

    @cached_property
    def processor(self) -> FixedSize | PatchBudget:
        """The processor, which makes pixel values of pictures."""
        assert self.manifest.pictures is not None, "every manifest of this task has one"
        return cast(FixedSize | PatchBudget, new_processor(self.manifest.pictures))

    def pixel_values(self, pictures: Picture | Sequence[Picture]) -> Features:
        """Return what the graph reads of pictures: float32 [N, 3, height, width], or [3, height, width] for one.

        Of a tower of pictures of any size they are the patches of one picture, float32 [rows, columns, numbers], and
        those of several come from `values_of`. Raises RequestError for what is no picture, or one that cannot be read;
        it says which of several.
        """
        values = self.values_of(pictures)
        if is_picture(pictures):
            return values[0]
        if self.tower.kind != "vision":
            raise RequestError("pictures of any size have no values of one shape. Use values_of, or give one picture.")
        return np.stack(values)

    def values_of(self, pictures: Picture | Sequence[Picture]) -> list[Features]:
        """Return what `pixel_values` returns of each picture."""
        return [self._values(*named) for named in named_pictures(pictures)]

    def tokens_of(self, picture: Picture, name: str = "the picture") -> int:
        """Return how many states a picture becomes; of its file only the header is read."""
        if self.tower.kind == "vision":
            return self.tower.context_length
        return math.prod(self.processor.grid(*picture_size(picture, name)))

    def run(self, pictures: Sequence[Picture], outputs: Sequence[str] | None = None) -> dict[str, Features]:
        """Run pictures as one batch; return the graph's outputs by name.

        outputs: names of the outputs to return, None for all. last_hidden_state is float32 [B, tokens, E]: the states
        of learned tokens, then those of patches row by row, and behind those of a smaller picture some without meaning.
        Raises RequestError as `pixel_values`, and for an unknown output.
        """
        if is_picture(pictures):
            raise RequestError("run takes a list of pictures. Give it one, of at least one picture.")
        return self.run_values(self.values_of(pictures), outputs)

    def run_values(self, values: Sequence[Features], outputs: Sequence[str] | None = None) -> dict[str, Features]:
        """Run what `pixel_values` returns of each picture, as `run` runs pictures."""
        names = output_names(self.session, outputs)
        return dict(zip(names, self.session.run(names, tower_inputs(self.tower, values)), strict=True))

    def picture_vectors(self, pictures: Picture | Sequence[Picture], batch_size: int) -> Features:
        """Return the vectors of pictures [N, D], also for one; see `VisionEncoder.embed`."""
        return np.concatenate([self.embed_values(values) for values in self.batches(pictures, batch_size)])

    def embed_values(self, values: Sequence[Features]) -> Features:
        """Return the vectors of pictures, as `embed` does, of what `pixel_values` returns of each."""
        vectors = self.run_values(values, [self.vector])[self.vector]
        if self.vector != "last_hidden_state":
            return vectors
        if self.tower.prefix_tokens:
            return vectors[:, 0]
        if self.tower.kind == "vision":
            return vectors.mean(1)
        counts = [each.shape[0] * each.shape[1] for each in values]
        return np.stack([row[:count].mean(0) for row, count in zip(vectors, counts, strict=True)])

    @property
    def vector(self) -> str:
        """The output that a vector is made of."""
        known = [output.name for output in self.session.get_outputs()]
        return next((name for name in VECTORS if name in known), "last_hidden_state")

    def batches(self, pictures: Picture | Sequence[Picture], batch_size: int) -> Iterator[list[Features]]:
        """Yield what `pixel_values` returns of each picture, `batch_size` of them at once: memory holds so many."""
        size, named = count("batch_size", batch_size), named_pictures(pictures)
        for start in range(0, len(named), size):
            yield [self._values(*each) for each in named[start : start + size]]

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
