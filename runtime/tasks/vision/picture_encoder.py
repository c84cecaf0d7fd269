"""Embed texts with pictures, classify them, and fill their masks: an encoder with a tower in front of it."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import PictureEncoderConfig
from edgeformer.errors import RequestError
from edgeformer.runtime.caches.encoder_outputs import check_length
from edgeformer.runtime.media.pictures.picture_files import Picture
from edgeformer.runtime.request_values import count, naming_entry
from edgeformer.runtime.steps.picture_rows import placed_embeddings
from edgeformer.runtime.steps.picture_tower import PromptPicture
from edgeformer.runtime.tasks.encoders.embeddings.forms import Embedding, Form
from edgeformer.runtime.tasks.encoders.encoder import Encoder
from edgeformer.runtime.tasks.encoders.text_encoder import BATCH, Encoded, Pair
from edgeformer.runtime.tasks.labels import Class, Filling
from edgeformer.runtime.tasks.model import Text, output_names
from edgeformer.runtime.tasks.vision.picture_prompts import PicturePrompts

Images = Picture | Sequence[Picture] | Sequence[Sequence[Picture]]
"""The pictures of a text, in the order of its placeholders; for a list of texts, a list for each."""


class PictureTokens(list[int]):
    """The token ids of a text with the placeholder for each state of its pictures. pictures: these, in order."""

    def __init__(self, ids: Sequence[int], pictures: Sequence[PromptPicture]):
        super().__init__(ids)
        self.pictures = tuple(pictures)

    def read(self) -> Self:
        """Let the tower read the pictures, whose pixels are let go then, and return the same ids."""
        for picture in self.pictures:
            while picture.read_next():
                pass
        return self


class PictureEncoder(PicturePrompts, Encoder):
    """An encoder that reads pictures, too: `images` of `embed`, `embeddings`, `classify`, `fill_mask` and `run`.

    What its tower computes of a picture is kept for further texts (`features`), and found again by its pixels. A text
    with pictures is never cut: one that is too long is a PromptLengthError.
    """

    @property
    def config(self) -> PictureEncoderConfig:
        """The config of the model."""
        return cast(PictureEncoderConfig, self.manifest.model)  # `Manifest` has checked it

    def see(self, text: Text, images: Sequence[Picture], *, names: Sequence[str] | None = None) -> PictureTokens:
        """Return the token ids of a text, or of its ids, with pictures in the places of its placeholders.

        They can stand for the text in every call. The tower reads the pictures when the text is run, or by `read` of
        what is returned. names: of the pictures, in errors. Raises RequestError unless there is a placeholder for each,
        and for what cannot be read, and PromptLengthError for a text that is too long.
        """
        shown, pictures, _ = self._read_prompt(text, images, self.config.context_length, names)
        return PictureTokens(shown.tolist(), pictures)

    def encode_text(self, text: Text | Pair, truncate: bool = False, max_length: int | None = None) -> Encoded:
        """Return the token ids and types of a text or a pair, as `TextEncoder.encode_text`; those of `see` stay."""
        if not isinstance(text, PictureTokens):
            return super().encode_text(text, truncate, max_length)
        check_length(len(text), self.config.context_length, "the text")
        return text, [0] * len(text)

    def run(
        self,
        texts: Sequence[Text | Pair],
        outputs: Sequence[str] | None = None,
        *,
        images: Sequence[Sequence[Picture]] | None = None,
    ) -> dict[str, NDArray[np.float32]]:
        """Run texts as one batch; return the graph's outputs by name, as `TextEncoder.run`. images: for each text."""
        return super().run(texts if images is None else self._with_images(texts, images), outputs)

    def run_encoded(
        self, encoded: Sequence[Encoded], outputs: Sequence[str] | None, attended: Sequence[int] | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Run texts as one batch, over the graph that reads embeddings where a text has pictures."""
        pictures = [ids.pictures if isinstance(ids, PictureTokens) else () for ids, _ in encoded]
        places = [list(ids).count(self.placeholder.token) for ids, _ in encoded]
        if places != [sum(picture.count for picture in each) for each in pictures]:
            raise RequestError("a text with pictures is read as it is: this model puts tokens of queries around it.")
        if not any(pictures):
            return super().run_encoded(encoded, outputs, attended)
        names = output_names(self.session, outputs)
        states = [[picture.states for picture in each] for each in pictures]
        texts = [np.array(ids, np.int64) for ids, _ in encoded]
        embeddings, mask = placed_embeddings(self.picture_graphs, texts, states, self.manifest.tokens.pad or 0)
        for row, length in enumerate(attended or ()):
            mask[row, length:] = 0
        feeds = {"inputs_embeds": embeddings, "attention_mask": mask}
        return dict(zip(names, self.picture_graphs.reader.run(names, feeds), strict=True))

    def embed(
        self,
        texts: Text | Pair | Sequence[Text | Pair],
        *,
        images: Images | None = None,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """Return one vector for each text, float32 [N, E], or [E] for one text; see `Encoder.embed` and `Images`."""
        if images is None:
            return super().embed(
                texts, batch_size=batch_size, truncate=truncate, prompt=prompt, prompt_name=prompt_name,
                dimensions=dimensions,
            )  # fmt: skip
        run = partial(super().embed, batch_size=batch_size, dimensions=dimensions)
        return np.array(self._in_batches(self.with_prompt(texts, prompt, prompt_name), images, batch_size, run))

    def embeddings(  # type: ignore[override]  # whose overloads know no pictures
        self,
        texts: Text | Sequence[Text],
        *,
        images: Images | None = None,
        forms: Sequence[Form] | None = None,
        query: bool = False,
        batch_size: int = BATCH,
        truncate: bool = True,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> Embedding | list[Embedding]:
        """Return all that the model makes of a text; for a list of texts, a list; see `Encoder.embeddings`."""
        run: Any = partial(super().embeddings, forms=forms, query=query, batch_size=batch_size)
        if images is None:
            found: Embedding | list[Embedding] = run(texts, truncate=truncate, prompt=prompt, prompt_name=prompt_name)
            return found
        seen: Any = self._in_batches(self.with_prompt(texts, prompt, prompt_name), images, batch_size, run)
        return cast("Embedding | list[Embedding]", seen)

    def classify(  # type: ignore[override]  # whose overloads know no pictures
        self, texts: Text | Pair | Sequence[Text | Pair], *, images: Images | None = None, batch_size: int = BATCH
    ) -> list[Class] | list[list[Class]]:
        """Return all labels of a text with their probabilities; for a list of texts, a list each; see `Encoder`."""
        run: Any = partial(super().classify, batch_size=batch_size)
        found: Any = run(texts) if images is None else self._in_batches(texts, images, batch_size, run)
        return cast("list[Class] | list[list[Class]]", found)

    def fill_mask(self, text: Text, *, images: Images | None = None, top_k: int = 5) -> list[Filling]:
        """Return the top_k likeliest tokens for the one mask token of a text, best first; see `Encoder.fill_mask`."""
        run = partial(super().fill_mask, top_k=top_k)
        return run(text) if images is None else run(self._with_images([text], [images])[0])

    def _in_batches(self, texts: Any, images: Any, batch_size: int, run: Callable[[Any], Any]) -> Any:
        """Return what `run` makes of texts with pictures; memory holds the states of a batch, and pixels of one."""
        size = count("batch_size", batch_size)
        if not self.is_list(texts):
            return run(self._with_images([texts], self._media(images, 1, single=True))[0])
        lists, found = self._media(images, len(texts), single=False), []
        for start in range(0, len(texts), size):
            found.extend(run(self._with_images(texts, lists, range(start, min(start + size, len(texts))))))
        return found

    def _with_images(self, texts: Any, images: Any, rows: Iterable[int] | None = None) -> list[PictureTokens]:
        """Return what `see` returns of texts, whose pictures the tower has read. rows: of these texts; None for all."""
        lists, seen = self._media(images, len(texts), single=False), []
        for row in range(len(texts)) if rows is None else rows:
            with naming_entry("text", row, texts[row], of=len(texts)):
                seen.append(self.see(texts[row], lists[row]).read())
        return seen
