"""The config of encoders of texts and of spectrograms."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Self

from edgeformer.config.heads import EncoderHead, HeadOutput, MaskedLMHead, Sizes
from edgeformer.config.models.decoder import DecoderConfig
from edgeformer.config.models.stack import AudioStem, Form, StackConfig, Task, TokenDropout, TokenProjection
from edgeformer.config.position import SinusoidalPositions
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """An encoder of a text, or of a spectrogram: bidirectional, or a causal model's blocks, for its states alone.

    Attributes:
        token_types: rows of the table of segment embeddings, 0 for none. The row of a table of one is added to every
            token.
        embedding_size: width of all embedding tables and of embedding_norm, whose output is projected to hidden_size
            (arXiv 1909.11942); None for tables of hidden_size without a projection.
        token_projection: what makes states of a table of tokens that has another width, which no other table has.
        token_dropout: what takes the place of embeddings of masks; None where they are tokens as others.
        audio: input layers for spectrograms; vocab_size is 0 then.
        head: computed from the last states; None returns only those.
    """

    task: ClassVar[Task] = "encoder"
    form: ClassVar[Form] = "encoder"
    reads: ClassVar[str] = "text"
    steps: ClassVar[bool] = False
    kind: Literal["encoder"] = "encoder"
    token_types: int = 0
    embedding_size: int | None = None
    token_projection: TokenProjection | None = None
    token_dropout: TokenDropout | None = None
    audio: AudioStem | None = None
    head: EncoderHead | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = self.vocab_size == 0 if self.audio else self.vocab_size > 0
        check(expected, self, "vocab_size", "0 for audio, else positive")
        plain = all(block.attention is not None and block.recurrent is None for block in self.blocks)
        check(plain, self, "blocks", "with self-attention and without recurrent layers in an encoder")
        plain = all(block.layer_input is None for block in self.blocks)
        check(plain, self, "blocks", "without layer_input and altup in an encoder")
        causal = {attention.causal for attention in self.attentions}
        check(len(causal) == 1, self, "blocks", "all causal or all not")
        own = all(attention.shares is None for attention in self.attentions)
        own = own and all(block.cross_attention is None for block in self.blocks)
        check(own, self, "blocks", "with keys and values of their own and without cross-attention in an encoder")
        check(self.embedding_size is None or self.embedding_size > 0, self, "embedding_size", "positive, or None")
        if isinstance(self.position_embedding, SinusoidalPositions):
            check(self.embedding_width % 2 == 0, self, "embedding_size", "even where positions are sinusoidal")
        if self.audio is not None:
            check(self.token_types == 0, self, "token_types", "0 for audio")
            check(self.embedding_size is None, self, "embedding_size", "None for audio")
            check(self.token_projection is None, self, "token_projection", "None for audio")
            check(self.token_dropout is None, self, "token_dropout", "None for audio")
            check(self.head is None, self, "head", "None for audio")
        one_way = any(attention.causal for attention in self.attentions)
        check(not (self.reads_unattended and one_way), self, "head", "one whose queries attend to what is behind them")
        if self.token_projection is not None:
            one_way = self.embedding_size is None and not any(attention.causal for attention in self.attentions)
            check(one_way, self, "token_projection", "None where embeddings are projected, or attention is causal")
        if isinstance(self.head, MaskedLMHead) and self.head.activation is None:
            fits = self.embedding_width == self.hidden_size
            check(fits, self, "head", "one with a dense layer where embeddings are projected")

    @classmethod
    def of_decoder(cls, config: DecoderConfig, head: EncoderHead | None = None) -> Self:
        """Return the encoder of a decoder's blocks, which stay causal, with another head."""
        shared = {field.name: getattr(config, field.name) for field in fields(StackConfig)}
        return cls(**shared, head=head)

    @property
    def embedding_width(self) -> int:
        """Return the width of the embedding tables."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def token_width(self) -> int:
        """Return the width of the table of tokens."""
        return self.embedding_width if self.token_projection is None else self.token_projection.size

    @property
    def sizes(self) -> Sizes:
        """Return the sizes that a head is made for."""
        return Sizes(hidden=self.hidden_size, embedding=self.token_width, vocabulary=self.vocab_size)

    @property
    def reads_unattended(self) -> bool:
        """Whether the states of tokens count that attention does not see."""
        return self.head is not None and any(part.expands_unattended for part in self.head.parts)

    @property
    def end_token(self) -> int | None:
        """Return the id of a token whose place in a text the head's outputs depend on; None where there is none."""
        return None if self.head is None else self.head.end_token

    @property
    def head_outputs(self) -> tuple[HeadOutput, ...]:
        """Return the outputs of the head; none without one."""
        return () if self.head is None else self.head.outputs
