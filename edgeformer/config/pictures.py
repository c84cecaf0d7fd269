"""Configs of what a tower of pictures has beside its blocks: patches, positions on a grid, and heads."""

from dataclasses import dataclass
from typing import Literal

from edgeformer.config.feed_forward import Activation, FeedForwardConfig
from edgeformer.config.heads import ProblemType
from edgeformer.config.norm import NormConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows and columns of patches."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        check(self.rows > 0, self, "rows", "positive")
        check(self.columns > 0, self, "columns", "positive")

    @property
    def patches(self) -> int:
        """Return the number of patches."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class PatchStem:
    """The input layer of a vision transformer: a linear map of every patch, row by row. Source: arXiv 2010.11929.

    Pixels to the right and below that fill no patch are not read.

    Attributes:
        height, width: pixels of the picture.
        patch_height, patch_width: pixels of a patch.
        channels: numbers per pixel.
        bias: whether the map has one.
    """

    height: int
    width: int
    patch_height: int
    patch_width: int
    channels: int = 3
    bias: bool

    def __post_init__(self) -> None:
        for field in ("patch_height", "patch_width", "channels"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(self.height >= self.patch_height, self, "height", f"that of a patch or more ({self.patch_height})")
        check(self.width >= self.patch_width, self, "width", f"that of a patch or more ({self.patch_width})")

    @property
    def grid(self) -> Grid:
        """Return the rows and columns of patches."""
        return Grid(rows=self.height // self.patch_height, columns=self.width // self.patch_width)

    @property
    def inputs(self) -> int:
        """Return the numbers in a patch."""
        return self.channels * self.patch_height * self.patch_width


@dataclass(frozen=True, kw_only=True)
class PatchVectors:
    """The input layer of a tower whose processor cuts pictures into patches: a linear map of the numbers of a patch.

    Attributes:
        side: pixels of a side of a patch.
        frames: frames of a video that a patch reaches over; a picture is in all of them.
        channels: numbers per pixel.
        bias: whether the map has one.
        centred: True where numbers from 0 to 1 are read as −1 to 1; None where they are read as they are.
        norm: of the numbers of a patch, and another one of what the map makes of them; None without these.
    """

    side: int
    frames: int
    channels: int = 3
    bias: bool
    centred: bool | None = None
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        for field in ("side", "frames", "channels"):
            check(getattr(self, field) > 0, self, field, "positive")

    @property
    def inputs(self) -> int:
        """Return the numbers in a patch."""
        return self.channels * self.frames * self.side**2


@dataclass(frozen=True, kw_only=True)
class PatchWindows:
    """Attention within windows of a picture. Source: arXiv 2502.13923 (Qwen2.5-VL), section 2.1.

    Attributes:
        squares: squares of patches of a side of a window; those at the right and below may be smaller.
        everywhere: indices of the blocks in which every patch attends to all of them.
    """

    squares: int
    everywhere: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.squares > 0, self, "squares", "positive")


@dataclass(frozen=True, kw_only=True)
class TokenPooler:
    """The pooled vector of a picture: the first state, normalized, through a dense layer, as far as it has these.

    Attributes:
        norm: normalizes that state.
        dense: activation of a dense layer behind it, activation(dense(x)); None without that layer.
        size: outputs of the dense layer; None for the hidden size.
    """

    kind: Literal["token"] = "token"
    norm: NormConfig | None = None
    dense: Activation | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        check(self.size is None or (self.size > 0 and self.dense is not None), self, "size", "None without dense")


@dataclass(frozen=True, kw_only=True)
class AttentionPooler:
    """The pooled vector of a picture: x + feed_forward(norm(x)), with x the attention of a learned query to all states.

    Source: SigLIP (arXiv 2303.15343), transformers' SiglipMultiheadAttentionPoolingHead.
    """

    kind: Literal["attention"] = "attention"
    num_heads: int
    norm: NormConfig
    feed_forward: FeedForwardConfig

    def __post_init__(self) -> None:
        check(self.num_heads > 0, self, "num_heads", "positive")


PicturePooling = Literal["first", "patches", "all"]
"""How states become a vector: the first of them, the mean of those of patches, or the mean of all."""


@dataclass(frozen=True, kw_only=True)
class PictureClassifier:
    """Logits [B, labels] of pictures: a linear layer over pooled states.

    Attributes:
        poolings: the vectors that are concatenated, in this order.
        distilled: a second linear layer reads the second state; the logits are the mean of both (arXiv 2012.12877).
        problem_type: see `ClassificationHead`.
    """

    labels: tuple[str, ...]
    poolings: tuple[PicturePooling, ...]
    distilled: bool = False
    problem_type: ProblemType | None = None

    def __post_init__(self) -> None:
        check(len(self.labels) > 0, self, "labels", "at least one label")
        check(len(self.poolings) > 0, self, "poolings", "at least one")


Bidirectional = Literal["pictures", "prompt", "windows"]
"""The tokens that attend both ways in a model that is causal otherwise.

pictures    the states of a picture attend to each other; a layer with a window sees nothing before it (Gemma 3)
prompt      all of a prompt does, in layers with a window, too (PaliGemma)
windows     the states of a picture do in layers with a window alone, which hides what is before it (Gemma 4)
"""
