"""Generate text about pictures: a decoder-only language model with a tower in front of it."""

import hashlib
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeformer.config import PictureTextConfig
from edgeformer.errors import PromptLengthError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.picture_files import LowDetail, Picture, is_picture, picture_size
from edgeformer.runtime.media.pictures.placeholders import check_count, expand
from edgeformer.runtime.media.pictures.positions import picture_spans
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.request_values import is_list, shown
from edgeformer.runtime.sessions.session import SessionSettings
from edgeformer.runtime.steps.picture_rows import PictureGraphs, PictureRows
from edgeformer.runtime.steps.picture_tower import FeatureCache, Features, PromptPicture, Run, Tower, WaitingPicture
from edgeformer.runtime.tasks.causal_lm import CausalLM, SeenPrompt
from edgeformer.runtime.tasks.model import Text

TILES = 1
"""Tiles that the tower reads in one run, for which other streams wait. More are no faster: four of 512 × 512 pixels
took 16.6 s in one run of SigLIP's base size on one core, and 15.4 s in four, with the same bits."""

FEATURE_BYTES = 256 * 2**20
"""Bytes of states of pictures that a model keeps for further questions: 380 pictures of 17 tiles of SmolVLM-256M."""


class PictureTextLM(CausalLM):
    """A decoder-only language model that reads pictures, too: `images` of `generate`, `stream`, `chat` and `forward`.

    What it computes of a picture is kept for further questions (`features`), and found again by its pixels.
    """

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        self.features = FeatureCache(FEATURE_BYTES)
        spelled = None if self.tokenizer is None else self.tokenizer.backend.id_to_token(self.placeholder.token)
        if self.tokenizer is not None and spelled is not None:
            self.tokenizer.unsaid += (spelled,)

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

    @property
    def tower(self) -> Tower:
        """The tower of pictures, and what it computed before."""
        return Tower(self._run_tower, self.features)

    @property
    def whole_prompts(self) -> bool:
        """Whether all of a prompt attends both ways, text and pictures."""
        return self.config.bidirectional == "prompt"

    def _check_pictures(self, count: int) -> None:
        """Raise RequestError for a prompt without pictures where these are what a prompt is about."""
        if self.whole_prompts and not count:
            raise RequestError("this model reads prompts with a picture, as it was trained; give it one.")

    def picture_features(self, picture: Picture, name: str = "the picture") -> Features:
        """Return what stands in the place of embeddings for a picture, float32 [tokens, E], of all its tiles in order.

        Raises RequestError for what is no picture, or one that cannot be read. name: of a picture without a path.
        """
        return self._picture(*self._pixels(picture, 1, name), name)[0].states

    def see(
        self,
        prompt: Text,
        images: Sequence[Picture],
        *,
        most_tokens: int | None = None,
        names: Sequence[str] | None = None,
    ) -> SeenPrompt:
        """Return the prompt of a text, or of its ids, with pictures in the places of its placeholders.

        Pictures are decoded and resized; the tower reads them when the prompt is run. most_tokens: of the prompt; None
        for what the context has room for. Sizes are known from headers, so what is too long is not decoded. names: of
        the pictures, in errors.

        Raises RequestError unless there is a placeholder for each picture, and as `picture_features`, and
        PromptLengthError for a prompt that is too long.
        """
        if isinstance(prompt, str) and images and self.placeholder.bare:
            prompt = self.require_tokenizer().encode(
                prompt, add_special_tokens=False, most_tokens=self.manifest.context_length
            )
        tokens = super().encode(prompt)
        check_count(tokens, self.placeholder, len(images))
        self._check_pictures(len(images))
        if names is None:
            names = ["the picture"] if len(images) == 1 else [f"picture {index}" for index in range(len(images))]
        self._check_length(tokens, images, names, most_tokens or self.manifest.context_length - 1)
        read, known, grids = list[PromptPicture](), dict[bytes, tuple[PromptPicture, tuple[int, ...]]](), []
        for image, name in zip(images, names, strict=True):
            pixels, digest, processor = self._pixels(image, len(images), name)
            if digest not in known:
                known[digest] = self._picture(pixels, digest, processor, name)
            picture, grid = known[digest]
            read.append(picture)
            grids.append(grid)
        shown = np.array(expand(tokens, self.placeholder, grids), np.int64)
        if not read:
            return SeenPrompt(shown.tolist(), shown.tolist(), None)
        places = [(rows, columns) for rows, columns, *_ in grids]
        spans = [] if self.config.axes is None else picture_spans(shown, self.placeholder.token, places)
        pictures = PictureRows(self.picture_graphs, shown, read, whole=self.whole_prompts, spans=spans)
        return SeenPrompt(pictures.tokens.tolist(), shown.tolist(), pictures)

    def _check_length(self, tokens: Sequence[int], images: Sequence[Picture], names: Sequence[str], most: int) -> None:
        """Raise PromptLengthError for a prompt that is too long whichever way EXIF turns its pictures."""
        least = len(tokens) - len(images)
        for image, name in zip(images, names, strict=True):
            processor, (height, width) = self._processor_of(image, len(images)), picture_size(image, name)
            grids = {processor.grid(height, width), processor.grid(width, height)}
            least += min(len(expand([self.placeholder.token], self.placeholder, [grid])) for grid in grids)
        if least > most:
            raise PromptLengthError(
                f"the prompt has {least} tokens with its pictures, and may have {most}. Leave pictures out, make them "
                "smaller, or give them with low detail."
            )

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
        runs = partial(self._runs, pixels, processor, name)
        return WaitingPicture(digest, count, self.tower, runs, None if packing is None else packing.packed), grid

    def _runs(self, pixels: Pixels, processor: Processor, name: str) -> list[Run]:
        """Return what the tower reads of a picture, `TILES` tiles in a run."""
        values, grids = processor.values(pixels, name), processor.patch_grid(*pixels.shape[:2])
        if grids is None:
            return [{"pixel_values": values[start : start + TILES]} for start in range(0, len(values), TILES)]
        grid_input = self.config.vision.grid_input
        assert grid_input is not None, "the export has checked it"
        parts = np.split(values, np.cumsum(grids.prod(1))[:-1])
        return [{"pixel_values": part, grid_input: grid[None]} for part, grid in zip(parts, grids, strict=True)]

    def _run_tower(self, run: Run) -> Features:
        """Return the states of a run of the tower, float32 [n, E]."""
        inputs = {name: value[None] for name, value in run.items()} if self.config.tiled else dict(run)
        [states] = self.vision_session.run(["image_features"], inputs)
        features: Features = states.reshape(-1, self.config.state_size)
        return features

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
