"""Compare texts and pictures with a dual encoder: vectors of both, labels that nobody trained, search by a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from edgeformer.config import DualEncoderConfig, PictureTower
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Similarity
from edgeformer.runtime import request_values
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.request_values import count, is_list, naming_entry, shown
from edgeformer.runtime.sessions.session import SessionSettings, check_tensors
from edgeformer.runtime.tasks.labels import Class, label_probabilities
from edgeformer.runtime.tasks.vision.picture_reader import PICTURES, Features, PictureReader
from edgeformer.runtime.tasks.vision.similarity import similarities, unit
from edgeformer.runtime.tasks.vision.text_rows import padded, text_rows

TEXTS = 32
"""Texts per run, unless the call says otherwise."""

TEMPLATE = "This is a photo of {}."
"""The text around a label, as in transformers' pipeline."""


@dataclass(frozen=True, kw_only=True)
class RankedPicture:
    """A picture of a ranking: its place in the list that was given, and its cosine with what was searched for."""

    index: int
    score: float


class DualEncoder(PictureReader):
    """An encoder of texts and a tower of pictures, whose vectors are compared."""

    def __init__(self, folder: Path, manifest: Manifest, settings: SessionSettings):
        super().__init__(folder, manifest, settings)
        graph, vector = manifest.graphs["text"].file, self.config.text.head_outputs[-1].name
        self.text_session: Any = self._open_graph(graph)
        check_tensors(self.text_session, graph, ["input_ids"], [vector])

    @property
    def config(self) -> DualEncoderConfig:
        """The config of the model."""
        return cast(DualEncoderConfig, self.manifest.model)  # `Manifest` has checked it

    @property
    def tower(self) -> PictureTower:
        """The config of the tower."""
        return self.config.vision

    @property
    def numbers(self) -> Similarity:
        """The learned numbers of the similarity."""
        assert self.manifest.similarity is not None, "every manifest of this task has them"
        return self.manifest.similarity

    def embed(
        self,
        texts: str | Sequence[str] | None = None,
        *,
        images: Picture | Sequence[Picture] | None = None,
        batch_size: int | None = None,
    ) -> Features:
        """Return one vector of length one for each text, or for each of `images`: float32 [N, D], or [D] for one.

        Products of the vectors of texts and of pictures are cosines. Texts are cut to the tokens that the model has
        positions for. batch_size: texts or pictures per run. Raises RequestError for both texts and images, and for
        what is no text or no picture.
        """
        if (texts is None) == (images is None):
            raise RequestError("embed takes texts, or pictures: embed(texts) or embed(images=…). Give one of them.")
        if images is not None:
            vectors = unit(self.picture_vectors(images, PICTURES if batch_size is None else batch_size))
            return vectors[0] if is_picture(images) else vectors
        vectors = unit(self._text_vectors(texts, TEXTS if batch_size is None else batch_size))
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(self, images: Picture | Sequence[Picture], texts: str | Sequence[str]) -> Features:
        """Return how alike pictures and texts are, as the model was trained to compare them: float32 [pictures, texts].

        It is scale · cosine + bias, transformers' `logits_per_image`. Raises RequestError as `embed`.
        """
        pictures, words = self.picture_vectors(images, PICTURES), self._text_vectors(texts, TEXTS)
        return similarities(pictures, words, self.numbers)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, images: Picture, labels: Sequence[str], *, template: str = TEMPLATE, top_k: int | None = None
    ) -> list[Class]: ...

    @overload
    def classify(
        self, images: Sequence[Picture], labels: Sequence[str], *, template: str = TEMPLATE, top_k: int | None = None
    ) -> list[list[Class]]: ...

    def classify(
        self,
        images: Picture | Sequence[Picture],
        labels: Sequence[str],
        *,
        template: str = TEMPLATE,
        top_k: int | None = None,
    ) -> list[Class] | list[list[Class]]:
        """Return the labels of a picture with their probabilities, the likeliest first; for several, a list each.

        labels: any words (zero-shot). template: the text that a label is put into, in the place of {}. top_k: how many,
        None for all. The probabilities of CLIP sum to 1; each of SigLIP's is that the label applies by itself. Raises
        RequestError as `embed`.
        """
        request_values.text("template", template)
        if template.count("{}") != 1:
            raise RequestError(f"template is {shown(template)}; it must have {{}} once, in the place of a label.")
        names = _texts("labels", labels)
        most = len(names) if top_k is None else count("top_k", top_k)
        logits = self.similarity(images, [template.replace("{}", name) for name in names])
        sigmoid = self.config.probability == "sigmoid"
        kind = "multi_label_classification" if sigmoid else "single_label_classification"
        found = [_classes(names, row, kind)[:most] for row in logits]
        return found[0] if is_picture(images) else found

    def rank(
        self, query: Picture, images: Sequence[Picture], *, top_k: int | None = None, batch_size: int = PICTURES
    ) -> list[RankedPicture]:
        """Return pictures by how well they fit a query, the best first.

        query: a text; or, to find pictures like it, a picture that is no text: a Path, bytes, an image, an array.
        top_k: how many, None for all. Raises RequestError as `embed`.
        """
        if not is_picture(query):
            raise RequestError(f"query is {shown(query)}; it must be one text, or one picture.")
        wanted = self.embed(query) if isinstance(query, str) else self.embed(images=query)
        if is_picture(images):
            raise RequestError("images is one picture; it must be a list of at least one.")
        most = len(images) if top_k is None else count("top_k", top_k)
        scores = self.embed(images=images, batch_size=batch_size) @ wanted
        order = np.argsort(-scores, kind="stable")[:most].tolist()
        return [RankedPicture(index=index, score=float(scores[index])) for index in order]

    def embed_values(self, values: Sequence[Features]) -> Features:
        """Return the vectors of pictures, of length one, of what `pixel_values` returns of each."""
        return unit(super().embed_values(values))

    def text_row(self, text: Any) -> list[int]:
        """Return the token ids of a text, cut to the positions that the model has, and padded where it reads that."""
        [row] = text_rows(self.require_tokenizer(), _texts("texts", [text]), self.config, self._padding)
        return list(row.tolist())

    def embed_rows(self, rows: Sequence[list[int]]) -> Features:
        """Return the vectors of texts, of length one, of their token ids from `text_row`."""
        vectors = self.run_texts(padded(rows, self.config, self._padding, "right"))
        return unit(vectors[self.config.text.head_outputs[-1].name])

    @property
    def _padding(self) -> int:
        return self.manifest.tokens.pad or 0

    def run_texts(self, input_ids: Any) -> dict[str, Features]:
        """Run token ids, int64 [N, S], through the graph of texts; return its outputs by name."""
        names = [output.name for output in self.text_session.get_outputs()]
        return dict(zip(names, self.text_session.run(names, {"input_ids": input_ids}), strict=True))

    def _text_vectors(self, texts: Any, batch_size: int) -> Features:
        """Return the vectors of texts [N, D], also for one."""
        size, given = count("batch_size", batch_size), _texts("texts", [texts] if isinstance(texts, str) else texts)
        tokenizer, found = self.require_tokenizer(), []
        for start in range(0, len(given), size):
            rows = text_rows(tokenizer, given[start : start + size], self.config, self._padding)
            found.append(self.run_texts(rows)[self.config.text.head_outputs[-1].name])
        return np.concatenate(found)


def _texts(name: str, texts: Any) -> list[str]:
    """Return a list of at least one text. Raises RequestError that says which of several is none."""
    if not is_list(texts) or len(texts) == 0:
        raise RequestError(f"{name} is {shown(texts)}; it must be a list of at least one text.")
    checked = []
    for row, text in enumerate(texts):
        with naming_entry("text", row, text, of=len(texts)):
            checked.append(request_values.text("text", text))
    return checked


def _classes(labels: Sequence[str], logits: Features, kind: Any) -> list[Class]:
    """Return labels by falling logit. One label among others has the probability 1 where it is the only one."""
    if len(labels) == 1 and kind == "single_label_classification":
        return [Class(label=labels[0], probability=1.0)]
    return label_probabilities(labels, logits, kind)
