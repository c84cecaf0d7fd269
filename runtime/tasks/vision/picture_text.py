"""Generate text about pictures: a decoder-only language model with a tower in front of it."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from edgeformer.config import GridVisionConfig, PictureTextConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures import Placeholder
from edgeformer.runtime.media.pictures.grid_patches import GridPatches
from edgeformer.runtime.media.pictures.kinds import new_processor
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.media.pictures.placeholders import check_count, expand
from edgeformer.runtime.media.pictures.positions import picture_spans
from edgeformer.runtime.media.pictures.processor import Processor
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.request_values import is_list, shown
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.picture_rows import (
    Features,
    PictureGraphs,
    PictureRows,
    PlacedTokens,
    picture_numbers,
)
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.model import Text

TILES = 4
"""Pictures that the tower reads in one run: more take more memory, and are no faster on a CPU."""

FEATURE_BYTES = 256 * 2**20
"""Bytes of states of pictures that a model keeps for further questions: 380 pictures of 17 tiles of SmolVLM-256M."""


class PictureTextLM(CausalLM):
    """A decoder-only language model that reads pictures, too: `images` of `generate`, `stream`, `chat` and `forward`.

    What it computes of a picture is kept for further questions (`features`), and found again by its pixels.
    """

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        self.features = FeatureCache(FEATURE_BYTES)

    @property
    def config(self) -> PictureTextConfig:
        """The config of the model."""
        assert isinstance(self.manifest.model, PictureTextConfig), "`Manifest` has checked it"
        return self.manifest.model

    @property
    def placeholder(self) -> Placeholder:
        """The placeholder of a picture in a prompt; its `token` is the placeholder."""
        assert self.manifest.placeholder is not None, "every manifest of this task has one"
        return self.manifest.placeholder

    @cached_property
    def processor(self) -> Processor:
        """The processor, which makes pixel values of pictures."""
        assert self.manifest.pictures is not None, "every manifest of this task has one"
        return new_processor(self.manifest.pictures)

    @cached_property
    def vision_session(self) -> Any:
        """The session of the tower, opened when there is a picture."""
        return self._open_graph(self.manifest.graphs["vision_encoder"].file)

    @cached_property
    def picture_graphs(self) -> PictureGraphs:
        """The sessions that read what the tower computes, opened when there is a picture."""
        graphs = self.manifest.graphs
        return PictureGraphs(
            embed=self._open_graph(graphs["embed_tokens"].file),
            decoder=self._open_graph(graphs["embedding_decoder"].file),
            token=self.placeholder.token,
            vocab_size=self.manifest.vocab_size,
        )

    def encode(
        self, text: Text, what: str = "prompt", vocab_size: int | None = None, context_length: int | None = None
    ) -> list[int]:
        """Return the token ids of a text without pictures; see `Model.encode`.

        Raises RequestError, too, for a text with a placeholder of a picture.
        """
        tokens = super().encode(text, what, vocab_size, context_length)
        check_count(tokens, self.placeholder, 0)
        return tokens

    def picture_features(self, picture: Picture, name: str = "the picture") -> Features:
        """Return what stands in the place of embeddings for a picture, float32 [tokens, E], of all its tiles in order.

        Raises RequestError for what is no picture, or one that cannot be read. name: of a picture without a path.
        """
        return self._features(*self._pixels(picture, name), name)

    def see(self, prompt: Text, images: Sequence[Picture]) -> SeenPrompt:
        """Return the prompt of a text, or of its ids, with pictures in the places of its placeholders.

        Raises RequestError unless there is a placeholder for each picture, and as `picture_features`.
        """
        tokens = super().encode(prompt)
        check_count(tokens, self.placeholder, len(images))
        names = ["the picture"] if len(images) == 1 else [f"picture {index}" for index in range(len(images))]
        read = [self._pixels(each, name) for each, name in zip(images, names, strict=True)]
        grids = [self.processor.grid(*pixels.shape[:2]) for pixels, _ in read]
        shown = np.array(expand(tokens, self.placeholder, grids), np.int64)
        self._new_tokens(len(shown), self.generation_config)  # before the tower runs
        states = [np.empty((0, self.config.wide_size), np.float32)]
        for (pixels, digest), name in zip(read, names, strict=True):
            states.append(self._features(pixels, digest, name))
        digests, numbers, seen = [digest for _, digest in read], shown.copy(), shown == self.placeholder.token
        placed = None
        if self.config.axes is not None and read:
            spans = picture_spans(shown, self.placeholder.token, grids)
            placed = PlacedTokens.of(shown, spans, digests, self.manifest.vocab_size)
            numbers[: len(placed.numbers)] = placed.numbers
        else:
            drawn = [
                picture_numbers(digest, len(each), self.manifest.vocab_size)
                for digest, each in zip(digests, states[1:], strict=True)
            ]
            numbers[seen] = np.concatenate([numbers[:0], *drawn])
        pictures = PictureRows(self.picture_graphs, numbers[seen], np.concatenate(states), placed)
        return SeenPrompt(numbers.tolist(), shown.tolist(), pictures)

    def _pixels(self, picture: Picture, name: str) -> tuple[Pixels, bytes]:
        """Return the pixels of a picture and their digest."""
        pixels = self.processor.read(picture, name)
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return pixels, digest.digest()

    def _features(self, pixels: Pixels, digest: bytes, name: str) -> Features:
        found = self.features.get(digest)
        if found is None:
            made = [self.vision_session.run(["image_features"], feeds)[0] for feeds in self._feeds(pixels, name)]
            found = np.concatenate(made).reshape(-1, self.config.wide_size)
            self.features.put(digest, found)
        return found

    def _feeds(self, pixels: Pixels, name: str) -> list[dict[str, Any]]:
        """Return what the tower reads of a picture, run by run."""
        values, vision = self.processor.values(pixels, name), self.config.vision
        if isinstance(vision, GridVisionConfig):
            assert isinstance(self.processor, GridPatches), "the manifest has checked it"
            return [{"pixel_values": values, vision.grid_input: self.processor.patch_grid(*pixels.shape[:2])}]
        runs = [values[start : start + TILES] for start in range(0, len(values), TILES)]
        return [{"pixel_values": run[None] if self.config.tiled else run} for run in runs]

    def _images(self, images: Any, prompts: int, single: bool) -> list[list[Picture]]:
        """Return the pictures of each prompt. Raises RequestError for what is no list of pictures, or not one each."""
        given = [[images] if is_picture(images) else images] if single else images
        if not is_list(given) or len(given) != prompts:
            raise RequestError(
                f"images must be a list of pictures{'' if single else f' for each of the {prompts} prompts'}, and it "
                f"is {type(images).__name__ if not is_list(images) else f'a list of {len(images)}'}."
            )
        lists = [[each] if is_picture(each) else each for each in given]
        for each in lists:
            if not is_list(each):
                raise RequestError(f"images has {shown(each)}; it must be a list of pictures.")
        return [list(each) for each in lists]


class FeatureCache:
    """States that a tower computed of pictures, by the digests of their pixels; what was used last stays longest.

    Attributes:
        max_bytes: that are kept; 0 keeps nothing more.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, digest: bytes) -> Features | None:
        """Return what was kept of a picture; None if nothing was."""
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def put(self, digest: bytes, features: Features) -> None:
        """Keep what was computed of a picture, and forget what was not used for longest."""
        with self._lock:
            if digest in self._kept or features.nbytes > self.max_bytes:
                return
            self._kept[digest] = features
            self._bytes += features.nbytes
            while self._bytes > self.max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
