"""Configs of projectors: what makes states of a text model of those of a tower of pictures."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.feed_forward import Activation
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """The base class of all projectors: what others ask of one. Most take the states of patches one by one.

    Attributes:
        ANY_SIZE: whether it reads squares of patches that follow each other, of pictures of any size.
        SEVERAL: whether there may be one of its own for each of several states of a tower (`deepstack`).
    """

    ANY_SIZE: ClassVar[bool] = False
    SEVERAL: ClassVar[bool] = False

    @property
    def side(self) -> int:
        """Return the patches of a side of the square that becomes one state."""
        return 1

    @property
    def joined(self) -> int:
        """Return the patches whose states stand side by side in what is read."""
        return self.side**2

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights, of the sizes of what is read and returned; more: further ones of `SEVERAL`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SquareProjector(ProjectorConfig):
    """The base class of projectors that make one state of those of a square of patches.

    Attributes:
        factor: patches of a side of the square.
    """

    kind: str
    factor: int

    def __post_init__(self) -> None:
        check(self.factor > 0, self, "factor", "positive")

    @property
    def side(self) -> int:
        """Return the patches of a side of the square that becomes one state."""
        return self.factor


@dataclass(frozen=True, kw_only=True)
class PixelShuffleProjector(SquareProjector):
    """The projector of Idefics3: the states of a square of patches side by side, then one matrix.

    Source: arXiv 2408.12637 (Idefics3), transformers' Idefics3Connector.

    Attributes:
        factor: patches of a side of the square; the rows of a square come one after the other.
    """

    kind: Literal["pixel_shuffle"] = "pixel_shuffle"
    bias: bool

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        return outputs * (inputs + self.bias)


@dataclass(frozen=True, kw_only=True)
class MlpProjector(ProjectorConfig):
    """Two dense layers, the second as wide as the text model. What is None, they do not have.

    Source: arXiv 2310.03744 (LLaVA-1.5), transformers' LlavaMultiModalProjector, InternVLMultiModalProjector.

    Attributes:
        factor: patches of a side of a square whose states stand side by side before the layers, as in
            `PixelShuffleProjector`.
        norm: normalizes what the first layer reads.
        activation, beta: between the layers; see `FeedForwardConfig`.
        size: outputs of the first layer; None for those of the second one.
    """

    ANY_SIZE: ClassVar[bool] = True
    kind: Literal["mlp"] = "mlp"
    factor: int | None = None
    norm: NormConfig | None = None
    size: int | None = None
    activation: Activation
    beta: float = 1.0
    bias: bool

    def __post_init__(self) -> None:
        for field in ("factor", "size"):
            check(getattr(self, field) is None or getattr(self, field) > 0, self, field, "positive, or None")

    @property
    def side(self) -> int:
        """Return the patches of a side of the square that becomes one state."""
        return self.factor or 1

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        size = self.size or outputs
        norm = 0 if self.norm is None else self.norm.weights(inputs)
        return norm + size * (inputs + self.bias) + outputs * (size + self.bias)


@dataclass(frozen=True, kw_only=True)
class AveragePoolProjector(SquareProjector):
    """The projector of Gemma 3 and 4: the means of squares of patches, normalized, then one matrix.

    Source: arXiv 2503.19786 (Gemma 3), transformers' Gemma3MultiModalProjector; Gemma4VisionPooler.

    Attributes:
        factor: patches of a side of a square. Patches to the right and below that fill no square are not read.
        norm: of the means.
        bias: of the matrix.
        scale: factor of the means, which are computed in float32 at least up to the norm; None for 1.
        standardized: True where a learned vector is taken from these, and they are multiplied with another one; None
            where they are not.
    """

    ANY_SIZE: ClassVar[bool] = True
    kind: Literal["average_pool"] = "average_pool"
    norm: NormConfig
    bias: bool = False
    scale: float | None = None
    standardized: bool | None = None

    @property
    def joined(self) -> int:
        """Return 1: the mean of a square's states is read."""
        return 1

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        return self.norm.weights(inputs) + outputs * (inputs + self.bias) + 2 * inputs * bool(self.standardized)


@dataclass(frozen=True, kw_only=True)
class LinearProjector(ProjectorConfig):
    """The projector of PaliGemma: one matrix. Source: arXiv 2407.07726, transformers' PaliGemmaMultiModalProjector."""

    kind: Literal["linear"] = "linear"
    bias: bool

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        return outputs * (inputs + self.bias)


@dataclass(frozen=True, kw_only=True)
class MergerProjector(SquareProjector):
    """The projector of Qwen2-VL: the states of a square of patches side by side, then two dense layers.

    Source: arXiv 2409.12191 (Qwen2-VL), transformers' PatchMerger.

    Attributes:
        factor: patches of a side of the square, which follow each other.
        norm: normalizes the state of each patch.
        activation: between the layers.
    """

    ANY_SIZE: ClassVar[bool] = True
    SEVERAL: ClassVar[bool] = True
    kind: Literal["merger"] = "merger"
    norm: NormConfig
    activation: Activation

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        layers = inputs * (inputs + 1) + outputs * (inputs + 1)
        norms = self.norm.weights(inputs // self.joined) + more * self.norm.weights(inputs)
        return (1 + more) * layers + norms


@dataclass(frozen=True, kw_only=True)
class MergedPatchesProjector(SquareProjector):
    """The projector of Mistral 3: a matrix makes one state of those of a square of patches, then two dense layers.

    The matrix reads the numbers of a state in the order of the patches, number by number.
    Source: transformers' Mistral3MultiModalProjector.

    Attributes:
        factor: patches of a side of the square, which follow each other.
        norm: normalizes the state of each patch.
        activation, beta: between the dense layers; see `FeedForwardConfig`.
        bias: of the dense layers.
    """

    ANY_SIZE: ClassVar[bool] = True
    kind: Literal["merged_patches"] = "merged_patches"
    norm: NormConfig
    activation: Activation
    beta: float = 1.0
    bias: bool

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        width = inputs // self.joined
        return self.norm.weights(width) + width * inputs + outputs * (width + outputs + 2 * self.bias)


@dataclass(frozen=True, kw_only=True)
class StackedFramesProjector(ProjectorConfig):
    """The projector of Voxtral: states that follow each other side by side, then two dense layers without biases.

    Source: arXiv 2507.13264 (Voxtral), transformers' VoxtralMultiModalProjector.

    Attributes:
        frames: states that become one.
        activation, beta: between the layers; see `FeedForwardConfig`.
    """

    kind: Literal["stacked_frames"] = "stacked_frames"
    frames: int
    activation: Activation
    beta: float = 1.0

    def __post_init__(self) -> None:
        check(self.frames > 0, self, "frames", "positive")

    @property
    def joined(self) -> int:
        """Return the states that stand side by side in what is read."""
        return self.frames

    def weights(self, inputs: int, outputs: int, more: int = 0) -> int:
        """Return the number of weights."""
        return outputs * (inputs + outputs)


Projector = (
    PixelShuffleProjector
    | MlpProjector
    | AveragePoolProjector
    | LinearProjector
    | MergerProjector
    | MergedPatchesProjector
    | StackedFramesProjector
)
"""The kinds of projectors, told apart by `kind`."""
