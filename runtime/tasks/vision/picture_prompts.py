"""Pictures in the places of placeholders of a text: their pixels, their lengths, and the runs of a tower over them."""

import hashlib
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from edgeformer.runtime.media.pictures.picture_files import LowDetail, Picture, is_picture, picture_size
from edgeformer.runtime.media.pictures.placeholders import expand
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.steps.picture_tower import Features, PromptPicture, Run, WaitingPicture
from edgeformer.runtime.tasks.tower_reader import ReadMedium, TowerReader

TILES = 1
"""Tiles that the tower reads in one run, for which other streams wait. More are no faster: four of 512 × 512 pixels
took 16.6 s in one run of SigLIP's base size on one core, and 15.4 s in four, with the same bits."""


class PicturePrompts(TowerReader):
    """A model that reads pictures between the tokens of a text."""

    reads: ClassVar[str | None] = "images"
    medium = "picture"

    @cached_property
    def processor(self) -> Processor:
        """The processor, which makes pixel values of pictures."""
        assert self.manifest.pictures is not None, "every manifest of this task has one"
        return new_processor(self.manifest.pictures)

    def picture_features(self, picture: Picture, name: str = "the picture") -> Features:
        """Return what stands in the place of embeddings for a picture, float32 [tokens, E], of all its tiles in order.

        Raises RequestError for what is no picture, or one that cannot be read. name: of a picture without a path.
        """
        return self._picture(*self._pixels(picture, 1, name), name)[0].states

    def _read_media(
        self, tokens: Sequence[int], media: Sequence[Picture], names: Sequence[str], most: int
    ) -> list[ReadMedium]:
        """Return the pictures of a prompt, and the rows and columns of tiles of each."""
        self._check_length(tokens, media, names, most)
        found, known = list[ReadMedium](), dict[bytes, ReadMedium]()
        for image, name in zip(media, names, strict=True):
            pixels, digest, processor = self._pixels(image, len(media), name)
            if digest not in known:
                known[digest] = self._picture(pixels, digest, processor, name)
            found.append(known[digest])
        return found

    def _check_length(self, tokens: Sequence[int], images: Sequence[Picture], names: Sequence[str], most: int) -> None:
        """Raise PromptLengthError for a prompt that is too long whichever way EXIF turns its pictures."""
        least = len(tokens) - len(images)
        for image, name in zip(images, names, strict=True):
            processor, (height, width) = self._processor_of(image, len(images)), picture_size(image, name)
            grids = {processor.grid(height, width), processor.grid(width, height)}
            least += min(len(expand([self.placeholder.token], self.placeholder, [grid])) for grid in grids)
        self._check_tokens(least, most, "Leave pictures out, make them smaller, or give them with low detail.")

    def _processor_of(self, image: Picture, pictures: int) -> Processor:
        """Return the processor of a picture among those of its prompt, which makes as many tokens as it asks for."""
        processor = self.processor.low_detail if isinstance(image, LowDetail) else self.processor
        return processor.among(pictures)

    def _pixels(self, image: Picture, pictures: int, name: str) -> tuple[Pixels, bytes, Processor]:
        """Return the pixels of a picture, the digest of these and of what is done to them, and the processor."""
        processor = self._processor_of(image, pictures)
        pixels = processor.read(image, name)
        low = isinstance(image, LowDetail) and self.processor.low_detail is not self.processor
        digest = hashlib.sha256(repr((pixels.shape, "low") if low else pixels.shape).encode() + processor.salt)
        digest.update(np.ascontiguousarray(pixels).data)
        return pixels, digest.digest(), processor

    def _picture(
        self, pixels: Pixels, digest: bytes, processor: Processor, name: str
    ) -> tuple[PromptPicture, tuple[int, ...]]:
        """Return a picture of a prompt, and the rows and columns of tiles that it is cut into."""
        height, width = pixels.shape[:2]
        grid = processor.grid(height, width)
        count = expand([self.placeholder.token], self.placeholder, [grid]).count(self.placeholder.token)
        packing = processor.packing(height, width)
        runs = partial(runs_of, processor, pixels, name, self.config.tower.grid_input)
        return WaitingPicture(digest, count, self.tower, runs, None if packing is None else packing.packed), grid

    def _is_medium(self, value: Any) -> bool:
        """Return whether a value is one picture, and not several."""
        return is_picture(value)


def runs_of(processor: Processor, pixels: Pixels, name: str, grid_input: str | None) -> list[Run]:
    """Return what a tower reads of a picture, `TILES` tiles in a run.

    name: of the picture, in errors. grid_input: of the tower, where pictures have any size.
    """
    values, grids = processor.values(pixels, name), processor.patch_grid(*pixels.shape[:2])
    if grids is None:
        return [{"pixel_values": values[start : start + TILES]} for start in range(0, len(values), TILES)]
    assert grid_input is not None, "the export has checked it"
    parts = np.split(values, np.cumsum(grids.prod(1))[:-1])
    return [{"pixel_values": part, grid_input: grid[None]} for part, grid in zip(parts, grids, strict=True)]
