"""The config of encoder-decoders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from edgeformer.config.models.decoder import DecoderConfig
from edgeformer.config.models.encoder import EncoderConfig
from edgeformer.config.models.stack import Form, Task
from edgeformer.config.models.vision_encoder import VisionConfig
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """An encoder-decoder: an encoder, and a decoder with cross-attention to it.

    Attributes:
        encoder: of texts, of recordings, or of pictures.
        shared_embedding: both have one table of token embeddings.
    """

    task: ClassVar[Task] = "seq2seq-lm"
    form: ClassVar[Form] = "encoder-decoder"
    reads: ClassVar[str] = "source"
    steps: ClassVar[bool] = False
    kind: Literal["seq2seq"] = "seq2seq"
    encoder: EncoderConfig | VisionConfig
    decoder: DecoderConfig
    shared_embedding: bool

    def __post_init__(self) -> None:
        outputs = (getattr(self.encoder, name, None) for name in ("head", "pooler", "projection", "classifier"))
        check(all(each is None for each in outputs), self, "encoder", "without a head")
        check(not any(attention.causal for attention in self.encoder.attentions), self, "encoder", "not causal")
        check(self.decoder.cross_geometry is not None, self, "decoder", "with cross-attention in its blocks")
        if self.shared_embedding:
            sizes = [(half.vocab_size, half.embedding_width) for half in (self.encoder, self.decoder)]
            check(sizes[0] == sizes[1], self, "shared_embedding", "False where vocabularies or widths differ")

    @property
    def similarity_parameters(self) -> int:
        """Return 0: only dual encoders compare what two stacks compute."""
        return 0

    @property
    def stacks(self) -> "Mapping[str, EncoderConfig | VisionConfig | DecoderConfig]":
        """Return the stacks by the names of their modules, in the order in which they run."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def input_stack(self) -> EncoderConfig | VisionConfig:
        """Return the stack that reads the model's input: the encoder."""
        return self.encoder

    @property
    def output_stack(self) -> DecoderConfig:
        """Return the stack that computes the model's outputs: the decoder."""
        return self.decoder

    @property
    def is_speech(self) -> bool:
        """Whether the model reads recordings."""
        return self.encoder.is_speech

    @property
    def reads_text(self) -> bool:
        """Whether sources are texts, and neither recordings nor pictures."""
        return not self.is_speech and not self.sees_pictures

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return self.encoder.sees_pictures

    def with_context_length(self, context_length: int) -> "Seq2SeqConfig":
        """Return the config of a model whose decoder has positions for so many tokens."""
        return replace(self, decoder=self.decoder.with_context_length(context_length))

    def with_picture_size(self, height: int, width: int) -> "Seq2SeqConfig":
        """Return the config of a model for pictures of another size. Raises ConfigError where it does not read them."""
        return replace(self, encoder=self.encoder.with_picture_size(height, width))

    def with_patches(self, side: int, square: int, frames: int, most: int) -> "Seq2SeqConfig":
        """Raise ConfigError for a processor of patches: encoders of pictures read those of one size."""
        return replace(self, encoder=self.encoder.with_patches(side, square, frames, most))

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens that the decoder can generate."""
        return self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Return the number of positions of the decoder."""
        return self.decoder.context_length

    @property
    def length_as_read(self) -> int:
        """Return the context length by which a family reads this config from its checkpoint again.

        A decoder with fewer positions than its source, as LED's, keeps them all.
        """
        return max(self.context_length, self.encoder.context_length) if self.reads_text else self.context_length
