"""The config of a tower that reads pictures of any size in batches, padded to the most patches of one."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from edgeformer.config.models.stack import Form, StackConfig, Task
from edgeformer.config.pictures import AttentionPooler, Grid, PatchVectors, PictureClassifier
from edgeformer.config.position import LearnedPositions
from edgeformer.contract.tensors import TensorSpec, padded_patch_inputs
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NaflexVisionConfig(StackConfig):
    """A tower of pictures of any size (NaFlex, arXiv 2502.14786): patches row by row, bidirectional blocks, outputs.

    The patches of the pictures of a batch are padded to one number, and nothing attends to padding. A patch's position
    is that of a square table of learned ones, which is stretched over the picture: borders on borders, bilinear and
    antialiased. context_length is the number of patches of a picture, at most.

    Attributes:
        patches: the input layer.
        table_side: rows and columns of the table of positions.
        pooler: computes `pooler_output`; None for none.
        classifier: computes `logits`, of the mean of all states; None for none.
    """

    task: ClassVar[Task] = "vision-encoder"
    form: ClassVar[Form] = "encoder"
    reads: ClassVar[str] = "picture"
    steps: ClassVar[bool] = False
    kind: Literal["naflex_vision"] = "naflex_vision"
    patches: PatchVectors
    table_side: int
    pooler: AttentionPooler | None = None
    classifier: PictureClassifier | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size == 0, self, "vocab_size", "0 for pictures")
        check(self.table_side > 0, self, "table_side", "positive")
        table = LearnedPositions(rows=self.table_side**2)
        check(self.position_embedding == table, self, "position_embedding", "a table of table_side rows and columns")
        still = self.patches.frames == 1 and self.patches.norm is None and not self.patches.centred
        check(still, self, "patches", "of one frame, without norms")
        plain = all(block.attention is not None and block.recurrent is None for block in self.blocks)
        plain = plain and all(block.cross_attention is None and block.layer_input is None for block in self.blocks)
        check(plain, self, "blocks", "with self-attention and nothing that reads other inputs")
        bare = all(not each.causal and each.rotary is None for each in self.attentions)
        check(bare, self, "blocks", "not causal, and without rotary embeddings")
        if self.pooler is not None:
            divides = self.hidden_size % self.pooler.num_heads == 0
            check(divides, self, "pooler", "given heads that divide the hidden size")
        if self.classifier is not None:
            mean = self.classifier.poolings == ("all",) and not self.classifier.distilled
            check(mean, self, "classifier", "one of the mean of all states")

    @property
    def table_length(self) -> int:
        """Return the number of rows of the table of positions."""
        return self.table_side**2

    @property
    def patch_vectors(self) -> PatchVectors:
        """Return the input layer."""
        return self.patches

    @property
    def prefix_tokens(self) -> int:
        """Return 0: no learned tokens stand before the patches."""
        return 0

    @property
    def projection(self) -> None:
        """Return None: the pooled vector is not projected."""
        return None

    @property
    def pooled_size(self) -> int:
        """Return the size of the pooled vector."""
        return self.hidden_size

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return True

    def inputs(self, tiled: bool) -> list[TensorSpec]:
        """Return the inputs of a graph, which reads a batch of pictures."""
        return padded_patch_inputs(self.patches.inputs)

    @property
    def padded_grids(self) -> tuple[Grid, ...]:
        """Return the rows and columns of pictures to try it with: wide, tall, a line, a column, one patch, the most.

        Both sides are longer and shorter than those of the table of positions.
        """
        most = self.context_length
        side = max(1, round(most**0.5))
        pairs = ((side, most // side), (2, side + 1), (side + 1, 2), (1, most), (most, 1), (1, 1))
        return tuple(
            dict.fromkeys(Grid(rows=rows, columns=min(columns, max(1, most // rows))) for rows, columns in pairs)
        )

    def with_picture_size(self, height: int, width: int) -> Self:
        """Raise ConfigError: pictures of one size are no patches."""
        raise ConfigError("the image processor makes pictures of one size, and the model reads patches of any size.")

    def with_patches(self, side: int, square: int, frames: int, most: int) -> Self:
        """Return the config for pictures of up to `most` patches. Raises ConfigError where it reads others."""
        if (side, square, frames) != (self.patches.side, 1, 1):
            raise ConfigError(
                f"the image processor makes patches of {side} pixels a side, and by config.json the model reads those "
                f"of {self.patches.side}. Use the processor that it was trained with."
            )
        return replace(self, context_length=most)
