"""The config of models that read what a tower computes, in the place of embeddings of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from edgeformer.config.layer_input import PictureLayerInput
from edgeformer.config.models.grid_vision import GridVisionConfig
from edgeformer.config.models.stack import StackConfig
from edgeformer.config.models.vision_encoder import VisionConfig
from edgeformer.config.pictures import Bidirectional, Grid
from edgeformer.config.position import RotaryAxes
from edgeformer.config.projectors import Projector
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class TowerTextConfig(StackConfig):
    """The fields that decoders and encoders with a tower share; the others are those of the text model by itself.

    Attributes:
        tower_graph, features: the form of the tower's graph, and the name of its output.
        embedding_graph: the form of the graph that reads embeddings.
        tower: of pictures; its blocks are those that are read.
        feature_layers: after how many blocks of the tower states are read, side by side where there are several. The
            tower's final norm belongs to those after its last block.
        keeps_prefix: whether the states of the tower's learned tokens are read, too, in front of those of patches.
        projector: makes states of the text model of the tower's.
        tiled: whether the graph has an axis for the tower's pictures that a picture is cut into.
        newline: True where a learned state follows those of each of the tower's pictures (`image_newline`); it ends
            rows, too, where the states of tiles are put together (`AnyResolutionProcessor`). None where none does.
    """

    tower_graph: ClassVar[str] = "vision_encoder"
    features: ClassVar[str] = "image_features"
    embedding_graph: ClassVar[str]
    tower: VisionConfig | GridVisionConfig
    feature_layers: tuple[int, ...]
    keeps_prefix: bool = False
    projector: Projector
    tiled: bool = False
    newline: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        last = len(self.tower.blocks)
        fits = len(self.feature_layers) > 0 and all(0 <= layer <= last for layer in self.feature_layers)
        check(fits, self, "feature_layers", f"numbers from 0 to {last}, the tower's blocks")
        self.tower.check_model(self)

    @property
    def bidirectional(self) -> Bidirectional | None:
        """Return None: only decoders attend in another way where they read pictures."""
        return None

    @property
    def deepstack(self) -> tuple[int, ...] | None:
        """Return None: only decoders add states behind their first blocks."""
        return None

    @property
    def axes(self) -> RotaryAxes | None:
        """Return None: only decoders have positions of several axes."""
        return None

    @property
    def layer_input(self) -> PictureLayerInput | None:
        """Return None: only decoders have a per-layer embedding."""
        return None

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
