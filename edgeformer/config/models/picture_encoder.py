"""The config of encoders of texts that read pictures, too."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from edgeformer.config.models.encoder import EncoderConfig
from edgeformer.config.models.stack import Task
from edgeformer.config.models.tower_text import TowerTextConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class PictureEncoderConfig(TowerTextConfig, EncoderConfig):
    """An encoder with a tower of pictures, whose states stand in the place of embeddings of tokens.

    The fields of an `EncoderConfig` are those of the text model, which computes on text what it computes by itself.
    """

    task: ClassVar[Task] = "image-text-encoder"
    embedding_graph: ClassVar[str] = "embedding_encoder"
    kind: Literal["picture_encoder"] = "picture_encoder"  # type: ignore[assignment]  # of another class of configs

    def __post_init__(self) -> None:
        super().__post_init__()
        both = not any(attention.causal for attention in self.attentions)
        check(both, self, "blocks", "not causal in an encoder that reads pictures")
        plain = self.token_types == 0 and self.token_dropout is None and self.token_projection is None
        check(plain, self, "token_types", "0, and no other layer between a table of tokens and what stands beside it")
        ids = self.head is not None and any(part.reads_ids for part in self.head.parts)
        check(not ids, self, "head", "one that reads states alone, since those of pictures have no token ids")

    @classmethod
    def of_text(cls, text: EncoderConfig, **seeing: object) -> "PictureEncoderConfig":
        """Return the config of a text model with a tower; seeing: the other fields."""
        shared = {field.name: getattr(text, field.name) for field in fields(EncoderConfig) if field.name != "kind"}
        return cls(**shared, **seeing)  # type: ignore[arg-type]
