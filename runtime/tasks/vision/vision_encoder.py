"""Classify pictures and make vectors of them with a tower of pictures."""

from collections.abc import Sequence
from typing import overload

import numpy as np

from edgeformer.config import PictureTower
from edgeformer.errors import RequestError
from edgeformer.runtime.media.pictures.picture_files import Picture, is_picture
from edgeformer.runtime.request_values import count
from edgeformer.runtime.tasks.labels import Class, label_probabilities
from edgeformer.runtime.tasks.vision.picture_reader import PICTURES, Features, PictureReader


class VisionEncoder(PictureReader):
    """A tower of pictures. `embed` always works; `classify` needs a model with classes."""

    @property
    def config(self) -> PictureTower:
        """The config of the model."""
        return self.tower

    def embed(self, pictures: Picture | Sequence[Picture], *, batch_size: int = PICTURES) -> Features:
        """Return one vector for each picture: float32 [N, D], or [D] for one picture.

        It is the model's projection (`image_embeds`), or else its pooled vector (`pooler_output`); of a model that has
        neither, such as a classifier, the state of its first token, or the mean of its states where it has none. It is
        not scaled to length one. Raises RequestError as `pixel_values`.
        """
        vectors = self.picture_vectors(pictures, batch_size)
        return vectors[0] if is_picture(pictures) else vectors

    @overload
    def classify(self, pictures: Picture, *, top_k: int | None = None, batch_size: int = PICTURES) -> list[Class]: ...  # type: ignore[overload-overlap]

    @overload
    def classify(
        self, pictures: Sequence[Picture], *, top_k: int | None = None, batch_size: int = PICTURES
    ) -> list[list[Class]]: ...

    def classify(
        self, pictures: Picture | Sequence[Picture], *, top_k: int | None = None, batch_size: int = PICTURES
    ) -> list[Class] | list[list[Class]]:
        """Return the labels of a picture with their probabilities, the likeliest first; for several, a list each.

        top_k: how many, None for all. Raises RequestError for a model without classes, and as `pixel_values`.
        """
        classifier = self.config.classifier
        if classifier is None:
            raise RequestError("this model has no classes. It embeds: embed.")
        most = len(classifier.labels) if top_k is None else count("top_k", top_k)
        batches = self.batches(pictures, batch_size)
        logits = np.concatenate([self.run_values(values, ["logits"])["logits"] for values in batches])
        found = [label_probabilities(classifier.labels, row, classifier.problem_type)[:most] for row in logits]
        return found[0] if is_picture(pictures) else found
