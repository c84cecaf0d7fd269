"""The config of a tower of pictures of any size."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.config.pictures import Grid, PatchVectors, PatchWindows
from edgeformer.config.position import LearnedPositions
from edgeformer.contract.tensors import TensorSpec, patch_inputs
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError

if TYPE_CHECKING:
    from edgeformer.config.models.tower_text import TowerTextConfig

AxisTables = Literal["columns_first", "alternating"]
"""The order of positions of columns and of rows in one table: all of columns first, or a column, a row, a column …"""

SAMPLE_SIDE = 3
"""Squares of a side of a window, where there is none."""


@dataclass(frozen=True, kw_only=True)
class GridVisionConfig(StackConfig):
    """A tower of pictures of any size: patches that the processor has cut, and bidirectional blocks.

    Patches come in squares that become one state, row by row, and row by row within a square. A block with a rotary
    embedding turns the first half of the pairs of a head by a patch's row, and the second half by its column: it is
    that of either axis, or of both. context_length is the number of rows and of columns that there are positions for.

    Attributes:
        patches: the input layer.
        square: patches of a side of a square.
        table_side: rows and columns of a table of learned positions, which is stretched over the picture: positions
            between those of the table are interpolated bilinearly, and corners are on corners; None for no table.
        antialiased: True where borders of the table are on borders instead, and all positions that a patch is nearer to
            than one step, of the table or of the patches, whichever is longer, have a part in its own (antialiased
            bilinear interpolation, arXiv 2502.14786, SigLIP 2); None where they are not.
        bordered: True where borders of the table are on borders as well, and positions are interpolated bilinearly
            between those of the table, whose outermost ones go on beyond it; None where they are not.
        alternating: True where the rotary embedding is that of both axes: rows turn by its first angle, its third one
            and so on, and columns by the others (Pixtral, arXiv 2410.07073). None where it is that of either.
        axis_tables: where a patch's position is the sum of one of its column and one of its row, of which there are
            table_side each: in which order the table has them. None where a table is one of a square.
        attention_windows: windows that most blocks attend in; None where all attend to the whole picture.
        grid_input: name of the input of graphs that says the rows and columns of patches, [[1, rows, columns]], as
            transformers.js knows it.
    """

    task: ClassVar[Task] = "vision-encoder"
    form: ClassVar[Form] = "encoder"
    reads: ClassVar[str] = "picture"
    steps: ClassVar[bool] = False
    kind: Literal["grid_vision"] = "grid_vision"
    patches: PatchVectors
    square: int
    table_side: int | None = None
    antialiased: bool | None = None
    bordered: bool | None = None
    alternating: bool | None = None
    axis_tables: AxisTables | None = None
    attention_windows: PatchWindows | None = None
    grid_input: Literal["grid_thw", "image_grid_thw"] = "image_grid_thw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size == 0, self, "vocab_size", "0 for pictures")
        check(self.square > 0, self, "square", "positive")
        check(self.table_side is None or self.table_side > 0, self, "table_side", "positive, or None")
        table = None if self.table_side is None else LearnedPositions(rows=self.table_length)
        check(self.position_embedding == table, self, "position_embedding", "a table of table_side rows and columns")
        if self.axis_tables is not None:
            enough = self.table_side is not None and self.table_side >= self.context_length
            check(enough, self, "table_side", f"{self.context_length} or more, a position for each row and column")
            check(not self.antialiased and not self.bordered, self, "axis_tables", "None where positions are stretched")
        plain = all(block.attention is not None and block.recurrent is None for block in self.blocks)
        plain = plain and all(block.cross_attention is None and block.layer_input is None for block in self.blocks)
        check(plain, self, "blocks", "with self-attention and nothing that reads other inputs")
        for attention in self.attentions:
            axes = 1 if self.alternating else 2
            rotary = attention.rotary
            whole = rotary is None or not rotary.halves or attention.head_dim == 2 * rotary.rotary_dim
            check(whole, self, "blocks", "with rotary embeddings for all of a half of a head, where halves turn")
            turns = attention.rotary is None or axes * attention.rotary.rotary_dim <= attention.head_dim
            check(turns and not attention.causal, self, "blocks", "not causal, with rotary embeddings for half a head")
        for field in ("antialiased", "bordered"):
            check(not getattr(self, field) or self.table_side is not None, self, field, "None without a table")
        check(not (self.antialiased and self.bordered), self, "bordered", "None where positions are antialiased")
        if self.attention_windows is not None:
            inside = all(0 <= index < len(self.blocks) for index in self.attention_windows.everywhere)
            check(inside, self, "attention_windows", f"given indices of the {len(self.blocks)} blocks")

    @property
    def table_length(self) -> int:
        """Return the number of rows of the table of positions."""
        side = self.table_side or 0
        return side**2 if self.axis_tables is None else 2 * side

    @property
    def patch_vectors(self) -> PatchVectors | None:
        """Return the input layer."""
        return self.patches

    @property
    def picture_windows(self) -> PatchWindows | None:
        """Return the windows that most blocks attend in."""
        return self.attention_windows

    @property
    def prefix_tokens(self) -> int:
        """Return 0: no learned tokens stand before the patches."""
        return 0

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return True

    @property
    def patch_grid(self) -> None:
        """Return None: the size of a picture decides."""

    def inputs(self, tiled: bool) -> list[TensorSpec]:
        """Return the inputs of a graph, which reads one picture."""
        return patch_inputs(self.patches.inputs, self.grid_input)

    def states(self, side: int, *, prefix: bool) -> None:
        """Return None: the size of a picture decides."""

    @property
    def sample_grids(self) -> tuple[Grid, ...]:
        """Return the rows and columns of squares of pictures: beyond a window on both sides, within one, a line.

        None has more than there are positions for.
        """
        side = SAMPLE_SIDE if self.attention_windows is None else self.attention_windows.squares
        sizes = (side + 1, side + 2), (2, 3), (1, 2 * side + 1)
        most = self.context_length // self.square
        return tuple(Grid(rows=min(rows, most), columns=min(columns, most)) for rows, columns in sizes)

    def values_shape(self, grid: Grid) -> tuple[int, ...]:
        """Return the dimensions of the values of a picture of so many squares."""
        return grid.patches * self.square**2, self.patches.inputs

    def check_model(self, model: "TowerTextConfig") -> None:
        """Raise ConfigError unless a model can read its states."""
        merges = model.projector.ANY_SIZE and model.projector.side == self.square
        check(merges, model, "projector", f"one of squares of {self.square} × {self.square} patches")
        check(not model.tiled and not model.newline, model, "tiled", "False for pictures of any size")
        check(model.bidirectional != "prompt", model, "bidirectional", "'pictures', 'windows' or None for any size")
        layers, last = model.deepstack or (), len(self.blocks)
        fits = all(0 <= layer <= last for layer in layers) and len(layers) <= len(model.blocks)
        fits = fits and (not layers or model.projector.SEVERAL)
        check(fits, model, "deepstack", f"numbers from 0 to {last}, and no more than blocks of the text model")

    def with_patches(self, side: int, square: int, frames: int, most: int) -> Self:
        """Return the config for pictures of up to `most` rows or columns of patches.

        Raises ConfigError where the tower reads others than those of these sides, squares and frames.
        """
        read = self.patches.side, self.square, self.patches.frames
        if read != (side, square, frames):
            raise ConfigError(
                f"the image processor has patch_size, merge_size and temporal_patch_size {(side, square, frames)}, and "
                f"by config.json the model reads {read}. Use the processor that it was trained with."
            )
        if self.axis_tables is not None and self.table_side is not None and most > self.table_side:
            raise ConfigError(
                f"the image processor makes pictures of up to {most} rows or columns of patches, and by config.json "
                f"the model has {self.table_side} positions for them."
            )
        return replace(self, context_length=most)
