"""The config of a tower of pictures of any size."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.config.pictures import PatchVectors, PatchWindows
from edgeformer.config.position import LearnedPositions
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class GridVisionConfig(StackConfig):
    """A tower of pictures of any size: patches that the processor has cut, and bidirectional blocks.

    Patches come in squares that become one state, row by row, and row by row within a square. A block with a rotary
    embedding turns the first half of the pairs of a head by a patch's row, and the second half by its column: it is
    that of either axis. context_length is the number of rows and of columns that there are positions for.

    Attributes:
        patches: the input layer.
        square: patches of a side of a square.
        table_side: rows and columns of a table of learned positions, which is stretched over the picture: positions
            between those of the table are interpolated bilinearly, and corners are on corners; None for no table.
        antialiased: True where borders of the table are on borders instead, and all positions that a patch is nearer to
            than one step, of the table or of the patches, whichever is longer, have a part in its own (antialiased
            bilinear interpolation, arXiv 2502.14786, SigLIP 2); None where they are not.
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
    attention_windows: PatchWindows | None = None
    grid_input: Literal["grid_thw", "image_grid_thw"] = "image_grid_thw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size == 0, self, "vocab_size", "0 for pictures")
        check(self.square > 0, self, "square", "positive")
        check(self.table_side is None or self.table_side > 0, self, "table_side", "positive, or None")
        table = None if self.table_side is None else LearnedPositions(rows=self.table_side**2)
        check(self.position_embedding == table, self, "position_embedding", "a table of table_side rows and columns")
        plain = all(block.attention is not None and block.recurrent is None for block in self.blocks)
        plain = plain and all(block.cross_attention is None and block.layer_input is None for block in self.blocks)
        check(plain, self, "blocks", "with self-attention and nothing that reads other inputs")
        for attention in self.attentions:
            turns = attention.rotary is None or 2 * attention.rotary.rotary_dim <= attention.head_dim
            check(turns and not attention.causal, self, "blocks", "not causal, with rotary embeddings for half a head")
        check(not self.antialiased or self.table_side is not None, self, "antialiased", "None without a table")
        if self.attention_windows is not None:
            inside = all(0 <= index < len(self.blocks) for index in self.attention_windows.everywhere)
            check(inside, self, "attention_windows", f"given indices of the {len(self.blocks)} blocks")

    @property
    def table_length(self) -> int:
        """Return the number of rows of the table of positions."""
        return 0 if self.table_side is None else self.table_side**2

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

    def with_sides(self, patches: int) -> Self:
        """Return the config with positions for so many rows and columns of patches."""
        return replace(self, context_length=patches)
