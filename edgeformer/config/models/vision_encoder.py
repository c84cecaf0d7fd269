"""The config of a tower of pictures."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.config.pictures import AttentionPooler, Grid, PatchStem, PictureClassifier, TokenPooler
from edgeformer.config.position import LearnedPositions
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class VisionConfig(StackConfig):
    """A tower of pictures: patches of pixels and learned tokens before them, bidirectional blocks, pooled outputs.

    A state has learned positions: those of the tokens, then those of patches row by row. context_length is the number
    of both.

    Attributes:
        patches: the input layer.
        prefix_tokens: learned tokens before the patches; the first one is the class token.
        trained_grid: patches for which the table of positions has rows.
        interpolates: whether positions of another grid are interpolated (bicubic), as DINOv2 does.
        fractional: whether the positions of a patch are those of the patch of `trained_grid` at the same part of
            height and width, as Idefics3 computes it in float32.
        pooler: computes `pooler_output`; None for none.
        projection: size of `image_embeds`, a linear map of the pooled vector without bias; None for none.
        classifier: computes `logits`; None for none.
    """

    task: ClassVar[Task] = "vision-encoder"
    form: ClassVar[Form] = "encoder"
    reads: ClassVar[str] = "picture"
    steps: ClassVar[bool] = False
    kind: Literal["vision"] = "vision"
    patches: PatchStem
    prefix_tokens: int
    trained_grid: Grid
    interpolates: bool = False
    fractional: bool = False
    pooler: TokenPooler | AttentionPooler | None = None
    projection: int | None = None
    classifier: PictureClassifier | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size == 0, self, "vocab_size", "0 for pictures")
        check(self.prefix_tokens >= 0, self, "prefix_tokens", "zero or positive")
        tokens = self.prefix_tokens + self.patches.grid.patches
        check(self.context_length == tokens, self, "context_length", f"the number of tokens and patches, {tokens}")
        rows = self.table_length
        positions = self.position_embedding
        fits = isinstance(positions, LearnedPositions) and positions.rows == rows and positions.offset == 0
        check(fits, self, "position_embedding", f"learned, of {rows} rows, one for each token and patch")
        check(not (self.interpolates and self.fractional), self, "fractional", "False where positions are interpolated")
        same = self.interpolates or self.fractional or self.patches.grid == self.trained_grid
        check(same, self, "trained_grid", "that of the pictures where positions are those of its patches")
        plain = all(block.attention is not None and block.recurrent is None for block in self.blocks)
        plain = plain and all(block.cross_attention is None and block.layer_input is None for block in self.blocks)
        check(plain, self, "blocks", "with self-attention and nothing that reads other inputs")
        check(not any(attention.causal for attention in self.attentions), self, "blocks", "not causal")
        check(self.projection is None or self.pooler is not None, self, "projection", "None without a pooler")
        if isinstance(self.pooler, AttentionPooler):
            divides = self.hidden_size % self.pooler.num_heads == 0
            check(divides, self, "pooler", "given heads that divide the hidden size")
        if isinstance(self.pooler, TokenPooler):
            check(self.prefix_tokens > 0, self, "pooler", "one that needs no class token where there is none")
        needed = 0 if self.classifier is None else 1 * ("first" in self.classifier.poolings) + self.classifier.distilled
        check(self.prefix_tokens >= needed, self, "classifier", "one that needs no more tokens than there are")

    @property
    def patch_stem(self) -> PatchStem:
        """Return the input layer."""
        return self.patches

    @property
    def table_length(self) -> int:
        """Return the number of tokens and patches of the trained grid."""
        return self.prefix_tokens + self.trained_grid.patches

    @property
    def interpolated(self) -> tuple[Grid, Grid] | None:
        """Return the grid of the table of positions, and the one that it is interpolated to; None where both agree."""
        return (
            None
            if self.fractional or self.patches.grid == self.trained_grid
            else (self.trained_grid, self.patches.grid)
        )

    @property
    def fractional_grids(self) -> tuple[Grid, Grid] | None:
        """Return the grid of the table of positions, and that of the pictures, where parts of these find positions."""
        return (self.trained_grid, self.patches.grid) if self.fractional else None

    def with_picture_size(self, height: int, width: int) -> Self:
        """Return the config for pictures of another size. Raises ConfigError where its positions do not fit them."""
        patches = replace(self.patches, height=height, width=width)
        own = self.patches
        if (height, width) != (own.height, own.width) and not (self.interpolates or self.fractional):
            raise ConfigError(
                f"the image processor makes pictures of {width} × {height} pixels, and the model reads "
                f"{own.width} × {own.height} (image_size in config.json). Use the processor that it was trained with."
            )
        return replace(self, patches=patches, context_length=self.prefix_tokens + patches.grid.patches)

    @property
    def pooled_size(self) -> int:
        """Return the size of the pooled vector."""
        size = self.pooler.size if isinstance(self.pooler, TokenPooler) else None
        return self.hidden_size if size is None else size
