"""The config of dual encoders: an encoder of texts and a tower of pictures, whose vectors are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from edgeformer.config.heads import TextVectorHead
from edgeformer.config.models.encoder import EncoderConfig
from edgeformer.config.models.naflex_vision import NaflexVisionConfig
from edgeformer.config.models.stack import Form, Task
from edgeformer.config.models.vision_encoder import VisionConfig
from edgeformer.documents.schema import check

PictureTower = VisionConfig | NaflexVisionConfig
"""Towers that are models by themselves, or halves of dual encoders."""


@dataclass(frozen=True, kw_only=True)
class DualEncoderConfig:
    """A dual encoder: one vector of a text, one of a picture, and the similarity of both (arXiv 2103.00020).

    similarity(t, v) = exp(scale) · cosine(t, v) + bias, with the learned numbers scale and bias.

    Attributes:
        text, vision: both halves. The first half's head and the second half's last output are the vectors.
        probability: what a similarity becomes: that of one label among others (softmax), or of a label by itself
            (sigmoid, arXiv 2303.15343).
        biased: whether a similarity has a bias.
        padded: whether every text is padded to the context length, and its padding attended to.
    """

    task: ClassVar[Task] = "dual-encoder"
    form: ClassVar[Form] = "encoder"
    reads: ClassVar[str] = "picture"
    steps: ClassVar[bool] = False
    kind: Literal["dual"] = "dual"
    text: EncoderConfig
    vision: PictureTower
    probability: Literal["softmax", "sigmoid"]
    biased: bool
    padded: bool

    def __post_init__(self) -> None:
        head, vision = self.text.head, self.vision
        check(isinstance(head, TextVectorHead), self, "text", "with a head that makes its vector")
        check(self.text.token_types == 0, self, "text", "without token types")
        check(vision.pooler is not None and vision.classifier is None, self, "vision", "with a pooled vector alone")
        size = vision.pooled_size if vision.projection is None else vision.projection
        check(isinstance(head, TextVectorHead) and head.size == size, self, "text", f"with vectors of {size} numbers")

    @property
    def stacks(self) -> "Mapping[str, EncoderConfig | PictureTower]":
        """Return the stacks by the names of their modules, in the order in which they run."""
        return {"text": self.text, "vision": self.vision}

    @property
    def input_stack(self) -> PictureTower:
        """Return the stack whose costs are those of the model where it is asked for one: that of pictures."""
        return self.vision

    @property
    def output_stack(self) -> PictureTower:
        """Return the stack whose costs are those of the model where it is asked for one: that of pictures."""
        return self.vision

    @property
    def similarity_parameters(self) -> int:
        """Return the number of parameters of the similarity: the scale, and the bias, if there is one."""
        return 1 + self.biased

    @property
    def shared_embedding(self) -> bool:
        """Return False: only texts have a table of tokens."""
        return False

    @property
    def is_speech(self) -> bool:
        """Return False: the model reads no recordings."""
        return False

    @property
    def sees_pictures(self) -> bool:
        """Return True: one half reads pictures."""
        return True

    def with_context_length(self, context_length: int) -> "DualEncoderConfig":
        """Return the config of a model whose texts have positions for so many tokens."""
        return replace(self, text=self.text.with_context_length(context_length))

    def with_picture_size(self, height: int, width: int) -> "DualEncoderConfig":
        """Return the config for pictures of another size. Raises ConfigError where its positions do not fit them."""
        return replace(self, vision=self.vision.with_picture_size(height, width))

    def with_patches(self, side: int, square: int, frames: int, most: int) -> "DualEncoderConfig":
        """Return the config for pictures of up to `most` patches. Raises ConfigError where it reads others."""
        return replace(self, vision=self.vision.with_patches(side, square, frames, most))

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens that texts are made of."""
        return self.text.vocab_size

    @property
    def context_length(self) -> int:
        """Return the number of positions of a text."""
        return self.text.context_length

    @property
    def length_as_read(self) -> int:
        """Return the context length by which a family reads this config from its checkpoint again."""
        return self.context_length
