"""The config of causal language models that read pictures, too."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self

from edgeformer.config.block import BlockConfig
from edgeformer.config.layer_input import PictureLayerInput
from edgeformer.config.models.decoder import DecoderConfig
from edgeformer.config.models.grid_vision import GridVisionConfig
from edgeformer.config.models.stack import StackConfig, Task
from edgeformer.config.models.vision_encoder import VisionConfig
from edgeformer.config.pictures import Bidirectional, Grid
from edgeformer.config.position import RotaryAxes
from edgeformer.config.projectors import Projector
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PictureTextConfig(DecoderConfig):
    """A causal language model with a tower of pictures, whose states stand in the place of embeddings of tokens.

    The fields of a `DecoderConfig` are those of the text model, which computes on text what it computes by itself.

    Attributes:
        tower_graph, features: the form of the tower's graph, and the name of its output.
        tower: of pictures; its blocks are those that are read.
        feature_layers: after how many blocks of the tower states are read, side by side where there are several. The
            tower's final norm belongs to those after its last block.
        keeps_prefix: whether the states of the tower's learned tokens are read, too, in front of those of patches.
        projector: makes states of the text model of the tower's.
        tiled: whether the graph has an axis for the tower's pictures that a picture is cut into.
        newline: True where a learned state follows those of each of the tower's pictures (`image_newline`); it ends
            rows, too, where the states of tiles are put together (`AnyResolutionProcessor`). None where none does.
        bidirectional: what attends both ways, a *block*; None where pictures are read as tokens are.
        deepstack: after how many blocks of the tower states are read that are added to those of the picture behind the
            first blocks of the text model, one for each, by a projector of their own (arXiv 2406.04334); None for none.
        axes: axes of the positions of pictures; None where a picture's states are positions as tokens are.
        layer_input: what stands in the place of a token for the per-layer embedding; None without one.
    """

    task: ClassVar[Task] = "image-text-to-text"
    tower_graph: ClassVar[str] = "vision_encoder"
    features: ClassVar[str] = "image_features"
    kind: Literal["picture_text"] = "picture_text"  # type: ignore[assignment]  # of another class of configs
    tower: VisionConfig | GridVisionConfig
    feature_layers: tuple[int, ...]
    keeps_prefix: bool = False
    projector: Projector
    tiled: bool = False
    newline: bool | None = None
    bidirectional: Bidirectional | None = None
    deepstack: tuple[int, ...] | None = None
    axes: RotaryAxes | None = None
    layer_input: PictureLayerInput | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        last = len(self.tower.blocks)
        fits = len(self.feature_layers) > 0 and all(0 <= layer <= last for layer in self.feature_layers)
        check(fits, self, "feature_layers", f"numbers from 0 to {last}, the tower's blocks")
        beside = (self.per_layer_embedding is None) == (self.layer_input is None)
        check(beside, self, "layer_input", "set where there is a per_layer_embedding, and only there")
        if self.layer_input is not None:
            known = max(self.layer_input.placeholder, self.layer_input.token) < self.vocab_size
            check(known, self, "layer_input", f"made of tokens below {self.vocab_size}")
        if self.axes is not None:
            turned = {2 * self.axes.pairs} | {each.rotary.rotary_dim for each in self.attentions if each.rotary}
            check(len(turned) == 1, self, "axes", "an axis for each pair of the rotary embedding")
        if self.bidirectional is not None:
            whole = not self.tiled and not self.newline
            check(whole, self, "bidirectional", "None where a picture is cut into tiles")
            check(all(map(_turns, self.blocks)), self, "bidirectional", "None for blocks that only look back")
        self.tower.check_model(self)

    @classmethod
    def of_decoder(cls, text: DecoderConfig, **seeing: object) -> "PictureTextConfig":
        """Return the config of a text model with a tower; seeing: the other fields."""
        shared = {field.name: getattr(text, field.name) for field in fields(DecoderConfig) if field.name != "kind"}
        return cls(**shared, **seeing)  # type: ignore[arg-type]

    @property
    def stacks(self) -> "Mapping[str, StackConfig]":
        """Return the stacks by the names of their modules; the text model's is the whole."""
        return {"tower": self.tower, "": self}

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return True

    @property
    def patch_grid(self) -> Grid:
        """Return the rows and columns of patches of pictures, which have one size."""
        grid = self.tower.patch_grid
        assert grid is not None, "pictures of any size have no such grid"
        return grid

    @property
    def picture_tokens(self) -> int | None:
        """Return the number of states that one of the tower's pictures becomes; None where its size decides."""
        states = self.tower.states(self.projector.side, prefix=self.keeps_prefix)
        return None if states is None else states + bool(self.newline)

    @property
    def feature_size(self) -> int:
        """Return the size of the states that the projector reads."""
        return self.tower.hidden_size * len(self.feature_layers) * self.projector.joined

    @property
    def state_size(self) -> int:
        """Return the width of a picture's state, with those that are added behind the first blocks at its end."""
        return self.hidden_size * (1 + len(self.deepstack or ()))

    @property
    def wide_size(self) -> int:
        """Return the width of embeddings: that of a state, and then a row of the per-layer embedding."""
        table = self.per_layer_embedding
        return self.state_size + (0 if table is None else table.size * len(self.blocks))

    def with_picture_size(self, height: int, width: int) -> Self:
        """Return the config for pictures of another size. Raises ConfigError where the tower does not read them."""
        return replace(self, tower=self.tower.with_picture_size(height, width))

    def with_patches(self, side: int, square: int, frames: int, most: int) -> Self:
        """Return the config for pictures of up to `most` rows or columns of patches.

        Raises ConfigError where the tower reads others than those of these sides, squares and frames.
        """
        return replace(self, tower=self.tower.with_patches(side, square, frames, most))


def _turns(block: BlockConfig) -> bool:
    """Return whether a causal block is one of attention that can look both ways, too."""
    attention = block.attention
    if attention is None or block.recurrent is not None or attention.relative is not None:
        return False
    return attention.shares is None and attention.chunk is None and (attention.window is None or attention.sliding)
