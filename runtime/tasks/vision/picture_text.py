"""Generate text about pictures: a decoder-only language model with a tower in front of it."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import PictureTextConfig
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures import Placeholder
from edgeformer.runtime.media.pictures.kinds import new_processor
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.media.pictures.placeholders import check_count, expand
from edgeformer.runtime.media.pictures.processor import Processor
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.request_values import is_list, shown
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.picture_rows import Features, PictureGraphs, PictureRows, picture_numbers
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
        self._check_pictures(0)
        return tokens

    def _check_pictures(self, count: int) -> None:
        """Raise RequestError for a prompt without pictures where these are what a prompt is about."""
        if self.config.bidirectional == "prompt" and not count:
            raise RequestError("this model reads prompts with a picture, as it was trained; give it one.")

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
        self._check_pictures(len(images))
        names = ["the picture"] if len(images) == 1 else [f"picture {index}" for index in range(len(images))]
        read = [self._pixels(each, name) for each, name in zip(images, names, strict=True)]
        grids = [self.processor.grid(*pixels.shape[:2]) for pixels, _ in read]
        shown = np.array(expand(tokens, self.placeholder, grids), np.int64)
        self._new_tokens(len(shown), self.generation_config)  # before the tower runs
        states = [np.empty((0, self.config.hidden_size), np.float32)]
        numbers = [np.empty(0, np.int64)]
        for (pixels, digest), name in zip(read, names, strict=True):
            states.append(self._features(pixels, digest, name))
            numbers.append(picture_numbers(digest, len(states[-1]), self.manifest.vocab_size))
        if self.config.bidirectional == "prompt":
            return self._see_whole(shown, np.concatenate(states), [digest for _, digest in read])
        pictures = PictureRows(self.picture_graphs, np.concatenate(numbers), np.concatenate(states))
        prompt_numbers = shown.copy()
        prompt_numbers[shown == self.placeholder.token] = np.concatenate(numbers)
        return SeenPrompt(prompt_numbers.tolist(), shown.tolist(), pictures)

    def _see_whole(self, shown: NDArray[np.int64], states: Features, digests: Sequence[bytes]) -> SeenPrompt:
        """Return a prompt that is one block: a number stands for each token, too, and follows from all of the prompt.

        What a layer keeps of a token depends on every other one, so that only the same prompt is found again.
        """
        numbers = picture_numbers(b"".join((*digests, shown.tobytes())), len(shown), self.manifest.vocab_size)
        [embeddings] = self.picture_graphs.embed.run(["inputs_embeds"], {"input_ids": shown[None]})
        embeddings[0, shown == self.placeholder.token] = states
        return SeenPrompt(numbers.tolist(), shown.tolist(), PictureRows(self.picture_graphs, numbers, embeddings[0]))

    def _pixels(self, picture: Picture, name: str) -> tuple[Pixels, bytes]:
        """Return the pixels of a picture and their digest."""
        pixels = self.processor.read(picture, name)
        digest = hashlib.sha256(repr(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return pixels, digest.digest()

    def _features(self, pixels: Pixels, digest: bytes, name: str) -> Features:
        found = self.features.get(digest)
        if found is None:
            values = self.processor.values(pixels, name)
            runs = [values[start : start + TILES] for start in range(0, len(values), TILES)]
            tiled = self.config.tiled
            made = [
                self.vision_session.run(["image_features"], {"pixel_values": run[None] if tiled else run})[0]
                for run in runs
            ]
            found = np.concatenate(made).reshape(-1, self.config.hidden_size)
            self.features.put(digest, found)
        return found

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
