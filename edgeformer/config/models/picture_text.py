"""The config of causal language models that read pictures, too."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from edgeformer.config.block import BlockConfig
from edgeformer.config.layer_input import PictureLayerInput
from edgeformer.config.models.decoder import DecoderConfig
from edgeformer.config.models.stack import Task
from edgeformer.config.models.tower_text import TowerTextConfig
from edgeformer.config.pictures import Bidirectional
from edgeformer.config.position import RotaryAxes
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PictureTextConfig(TowerTextConfig, DecoderConfig):
    """A causal language model with a tower of pictures, whose states stand in the place of embeddings of tokens.

    The fields of a `DecoderConfig` are those of the text model, which computes on text what it computes by itself.

    Attributes:
        bidirectional: what attends both ways, a *block*; None where pictures are read as tokens are.
        deepstack: after how many blocks of the tower states are read that are added to those of the picture behind the
            first blocks of the text model, one for each, by a projector of their own (arXiv 2406.04334); None for none.
        axes: axes of the positions of pictures; None where a picture's states are positions as tokens are.
        layer_input: what stands in the place of a token for the per-layer embedding; None without one.
    """

    task: ClassVar[Task] = "image-text-to-text"
    embedding_graph: ClassVar[str] = "embedding_decoder"
    kind: Literal["picture_text"] = "picture_text"  # type: ignore[assignment]  # of another class of configs
    bidirectional: Bidirectional | None = None
    deepstack: tuple[int, ...] | None = None
    axes: RotaryAxes | None = None
    layer_input: PictureLayerInput | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @classmethod
    def of_text(cls, text: DecoderConfig, **seeing: object) -> "PictureTextConfig":
        """Return the config of a text model with a tower; seeing: the other fields."""
        shared = {field.name: getattr(text, field.name) for field in fields(DecoderConfig) if field.name != "kind"}
        return cls(**shared, **seeing)  # type: ignore[arg-type]


def _turns(block: BlockConfig) -> bool:
    """Return whether a causal block is one of attention that can look both ways, too."""
    attention = block.attention
    if attention is None or block.recurrent is not None or attention.relative is not None:
        return False
    return attention.shares is None and attention.chunk is None and (attention.window is None or attention.sliding)
