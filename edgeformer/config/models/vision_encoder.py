"""The config of a tower of pictures."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.config.pictures import AttentionPooler, Grid, PatchStem, PictureClassifier, TokenPooler
from edgeformer.config.position import LearnedPositions
from edgeformer.contract.tensors import TensorSpec, picture_inputs
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError

if TYPE_CHECKING:
    from edgeformer.config.models.tower_text import TowerTextConfig


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

    @property
    def patch_grid(self) -> Grid:
        """Return the rows and columns of patches of all pictures."""
        return self.patches.grid

    @property
    def grid_input(self) -> None:
        """Return None: graphs know the rows and columns of patches."""

    def inputs(self, tiled: bool) -> list[TensorSpec]:
        """Return the inputs of a graph; tiled: whether there is an axis for the pictures that one is cut into."""
        return picture_inputs(self.patches.channels, self.patches.height, self.patches.width, tiled)

    def states(self, side: int, *, prefix: bool) -> int:
        """Return the states that squares of patches of a side become. prefix: whether learned tokens are counted."""
        grid = self.patches.grid
        return (grid.rows // side) * (grid.columns // side) + self.prefix_tokens * prefix

    @property
    def sample_grids(self) -> tuple[Grid, ...]:
        """Return the rows and columns of squares of pictures to try it with."""
        return (self.patches.grid,)

    def values_shape(self, grid: Grid) -> tuple[int, ...]:
        """Return the dimensions of the values of a picture of so many squares."""
        return self.patches.channels, self.patches.height, self.patches.width

    def check_model(self, model: "TowerTextConfig") -> None:
        """Raise ConfigError unless a model can read its states."""
        outputs = (self.pooler, self.projection, self.classifier)
        check(all(each is None for each in outputs), model, "tower", "without outputs beside its states")
        check(model.deepstack is None, model, "deepstack", "None for pictures of one size")
        grid, side = self.patches.grid, model.projector.side
        single = side == 1 or not model.keeps_prefix
        check(single, model, "keeps_prefix", "False where squares of patches become a state")
        fits = side <= min(grid.rows, grid.columns)
        check(fits, model, "projector", "for squares that are no larger than a picture")
        if model.projector.joined > 1:
            square = grid.rows == grid.columns and grid.rows % side == 0
            check(square, model, "projector", f"for squares of {side} × {side} patches, of pictures that are square")

    def with_patches(self, side: int, square: int, frames: int, most: int) -> Self:
        """Raise ConfigError: the values of pictures of one size are no patches."""
        raise ConfigError("the image processor cuts pictures of any size, and the model reads those of one size.")
