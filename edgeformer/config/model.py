"""Configs of whole models: decoders, encoders, encoder-decoders.

What differs between the kinds of models is asked of their configs:

- `task` is the key of the tables that other layers have.
- `form` is what clients call the kind, and `reads` is what they call its input.
- `steps` says whether its time goes to steps of single tokens.
- `stacks` are the parts of which parameters, constants and costs are counted.
- A property that a kind lacks, such as the cache of an encoder, has its neutral value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, ClassVar, Literal, Self

from edgeformer.config.block import AttentionConfig, BlockConfig
from edgeformer.config.heads import EncoderHead, HeadOutput, MaskedLMHead, Sizes
from edgeformer.config.layer_input import PerLayerEmbedding
from edgeformer.config.norm import NormConfig
from edgeformer.config.position import LearnedPositions, SinusoidalPositions, TransformerXLConfig
from edgeformer.contract.tensors import CacheGeometry, KeyValueState, State
from edgeformer.documents import schema
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError

Task = Literal["causal-lm", "seq2seq-lm", "encoder"]
"""The task of a model, which the manifest stores; it is the key of tables by kind. Every class of configs has one."""

Form = Literal["decoder", "encoder", "encoder-decoder"]
"""Kinds of graphs, as clients tell them apart."""

NO_CACHE = CacheGeometry(layers=())
"""The cache geometry of an encoder, which has no cache."""


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The fields that decoders and encoders share: embeddings, blocks, a final norm.

    Attributes:
        context_length: positions that the model can process; position tables have this many rows.
        final_norm: None where the blocks end with a norm.
        embedding_scale: factor of token embeddings, applied before positions are added.
        embedding_norm: normalizes the sum of token and position embeddings.
        shared_blocks: all blocks have the parameters of the first one (arXiv 1909.11942).
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig | None
    embedding_scale: float = 1.0
    position_embedding: LearnedPositions | SinusoidalPositions | None = None
    embedding_norm: NormConfig | None = None
    shared_blocks: bool = False

    def __post_init__(self) -> None:
        for field in ("hidden_size", "context_length"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(len(self.blocks) > 0, self, "blocks", "at least one block")
        check(not self.shared_blocks or len(set(self.blocks)) == 1, self, "shared_blocks", "False where blocks differ")
        positions = self.position_embedding
        if isinstance(positions, LearnedPositions):
            enough = positions.rows - positions.offset >= self.context_length
            check(enough, self, "position_embedding", f"given a row for each of {self.context_length} positions")
        if isinstance(positions, SinusoidalPositions) or any(
            isinstance(attention.relative, TransformerXLConfig) for attention in self.attentions
        ):
            check(self.hidden_size % 2 == 0, self, "hidden_size", "even where positions are sinusoidal")

    @property
    def embedding_width(self) -> int:
        """Return the width of the embedding tables; see `EncoderConfig.embedding_size`."""
        return self.hidden_size

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """Return the self-attention of every block that has one."""
        return tuple(block.attention for block in self.blocks if block.attention is not None)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return, per layer, the number of past tokens that attention reads at most; None for the whole context."""
        attentions = [block.attention for block in self.blocks]
        return tuple(attention.window if attention and attention.sliding else None for attention in attentions)

    @property
    def token_width(self) -> int:
        """Return the width of the table of tokens."""
        return self.embedding_width

    @property
    def embedding_size(self) -> int | None:
        """Return None: only encoders project their embeddings."""
        return None

    @property
    def token_types(self) -> int:
        """Return 0: only encoders have segment embeddings."""
        return 0

    @property
    def token_projection(self) -> "TokenProjection | None":
        """Return None: only encoders project the rows of their tokens."""
        return None

    @property
    def audio(self) -> "AudioStem | None":
        """Return None: only encoders read spectrograms."""
        return None

    @property
    def per_layer_embedding(self) -> PerLayerEmbedding | None:
        """Return None: only decoders make an input for every block."""
        return None

    @property
    def cache_geometry(self) -> CacheGeometry:
        """Return what each block keeps between runs: nothing, unless it is a decoder's."""
        return NO_CACHE

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """Return, per layer with a cache, the number of past tokens that it need keep; None for the whole context."""
        return ()

    @property
    def cross_geometry(self) -> CacheGeometry | None:
        """Return None: only decoders have cross-attention."""
        return None

    @property
    def shared_embedding(self) -> bool:
        """Return False: one stack has a table of its own."""
        return False

    @property
    def stacks(self) -> Mapping[str, Self]:
        """Return the stacks of the model by the names of their modules: itself, whose module is the model."""
        return {"": self}

    @property
    def input_stack(self) -> Self:
        """Return the stack that reads the model's input: itself; see `Seq2SeqConfig.input_stack`."""
        return self

    @property
    def output_stack(self) -> Self:
        """Return the stack that computes the model's outputs: itself; see `Seq2SeqConfig.output_stack`."""
        return self

    @property
    def is_speech(self) -> bool:
        """Whether the model reads recordings."""
        return self.audio is not None

    def with_context_length(self, context_length: int) -> Self:
        """Return the config of a model with positions for so many tokens."""
        return replace(self, context_length=context_length)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data. A run of equal blocks is stored as one block and the number of repetitions."""
        data = schema.fields_to_json(self)
        data["blocks"] = [
            {"repeat": len(list(run)), "block": schema.to_json(block)} for block, run in groupby(self.blocks)
        ]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], path: str = "") -> Self:
        """Return the config that `to_json` stored. Raises ConfigError that names the wrong field."""
        if not isinstance(data, dict) or "blocks" not in data:
            raise ConfigError(f"a {cls.__name__} needs blocks: a list of {{repeat: number, block: {{…}}}}.")
        blocks = schema.repeated(data["blocks"], "block", f"{path}.blocks" if path else "blocks")
        return schema.fields_from_json(cls, data | {"blocks": blocks}, path)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A causal language model, or a decoder with cross-attention to an encoder in every block.

    Logits are softcap(logit_scale · head(x)), with softcap(l) = logit_softcap · tanh(l / logit_softcap).

    Attributes:
        tied_head: the output projection is the embedding table itself, stored once.
        per_layer_embedding: makes an input of its own for every block; see `BlockConfig.layer_input`.
    """

    task: ClassVar[Task] = "causal-lm"
    form: ClassVar[Form] = "decoder"
    reads: ClassVar[str] = "prompt"
    steps: ClassVar[bool] = True
    kind: Literal["decoder"] = "decoder"
    tied_head: bool
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    per_layer_embedding: PerLayerEmbedding | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size > 0, self, "vocab_size", "positive")
        check(self.logit_softcap is None or self.logit_softcap > 0, self, "logit_softcap", "positive, or None")
        check(all(attention.causal for attention in self.attentions), self, "blocks", "causal in a decoder")
        for index, block in enumerate(self.blocks):
            source = None if block.attention is None else block.attention.shares
            if source is not None:
                fits = 0 <= source < index and self.blocks[source].states[:1] == _key_value(block)
                what = "sharing the keys and values of an earlier block that has its own, of the same shape"
                check(fits, self, "blocks", what)
        sizes = {block.layer_input and block.layer_input.size for block in self.blocks}
        wanted = self.per_layer_embedding and self.per_layer_embedding.size
        check(sizes == {wanted}, self, "per_layer_embedding", "of the size of every block's layer_input, else None")
        check(
            len({block.altup for block in self.blocks}) == 1, self, "blocks", "all with the same altup, or all without"
        )
        across = {block.cross_attention and _cross_geometry(block) for block in self.blocks}
        check(len(across) == 1, self, "blocks", "all with cross-attention of one geometry, or all without")

    @property
    def cache_geometry(self) -> CacheGeometry:
        """Return what each block keeps between runs."""
        return CacheGeometry(layers=tuple(block.states for block in self.blocks))

    @property
    def cross_geometry(self) -> CacheGeometry | None:
        """Return the shape of the keys and values of the encoder's states; None without cross-attention."""
        if self.blocks[0].cross_attention is None:
            return None
        heads, head_dim = _cross_geometry(self.blocks[0])
        return CacheGeometry.of_attention(len(self.blocks), heads, head_dim)

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """Return, per layer, the number of past tokens that a cache need keep; None for the whole context.

        A layer whose keys and values later layers read keeps all, because no kernel reads an evicting cache of another
        layer. None, too, for layers without keys and values of their own.
        """
        read = {attention.shares for attention in self.attentions}
        keep = [
            block.attention and block.attention.shares is None and index not in read
            for index, block in enumerate(self.blocks)
        ]
        return tuple(window if alone else None for window, alone in zip(self.windows, keep, strict=True))


def _key_value(block: BlockConfig) -> tuple[State, ...]:
    """Return the keys and values that the self-attention of a block reads, its own or an earlier block's."""
    attention = block.attention
    if attention is None:
        return ()
    return (KeyValueState(num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim),)


def _cross_geometry(block: BlockConfig) -> tuple[int, int]:
    assert block.cross_attention is not None
    return block.cross_attention.num_heads, block.cross_attention.head_dim


@dataclass(frozen=True, kw_only=True)
class AudioStem:
    """Whisper's input layers: two convolutions of width 3 over a log-mel spectrogram, each followed by GELU.

    The second one has stride 2 and halves the number of frames. Source: arXiv 2212.04356.
    """

    mel_bins: int

    def __post_init__(self) -> None:
        check(self.mel_bins > 0, self, "mel_bins", "positive")


@dataclass(frozen=True, kw_only=True)
class TokenProjection:
    """A linear layer that makes a token's state of a thin row of the table of tokens, before positions are added.

    Attributes:
        size: width of the table.
        trigrams: the layer reads the rows of the next token, of the token, and of the one before, zeros where a text
            has none (arXiv 2004.02984).
    """

    size: int
    trigrams: bool

    def __post_init__(self) -> None:
        check(self.size > 0, self, "size", "positive")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """An encoder of a text, or of a spectrogram: bidirectional, or a causal model's blocks, for its states alone.

    Attributes:
        token_types: rows of the table of segment embeddings, 0 for none. The row of a table of one is added to every
            token.
        embedding_size: width of all embedding tables and of embedding_norm, whose output is projected to hidden_size
            (arXiv 1909.11942); None for tables of hidden_size without a projection.
        token_projection: what makes states of a table of tokens that has another width, which no other table has.
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
    def head_outputs(self) -> tuple[HeadOutput, ...]:
        """Return the outputs of the head; none without one."""
        return () if self.head is None else self.head.outputs


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """An encoder-decoder: an encoder, and a decoder with cross-attention to it.

    Attributes:
        shared_embedding: both have one table of token embeddings.
    """

    task: ClassVar[Task] = "seq2seq-lm"
    form: ClassVar[Form] = "encoder-decoder"
    reads: ClassVar[str] = "source"
    steps: ClassVar[bool] = False
    kind: Literal["seq2seq"] = "seq2seq"
    encoder: EncoderConfig
    decoder: DecoderConfig
    shared_embedding: bool

    def __post_init__(self) -> None:
        check(self.encoder.head is None, self, "encoder", "without a head")
        check(not any(attention.causal for attention in self.encoder.attentions), self, "encoder", "not causal")
        check(self.decoder.cross_geometry is not None, self, "decoder", "with cross-attention in its blocks")
        if self.shared_embedding:
            sizes = [(half.vocab_size, half.embedding_width) for half in (self.encoder, self.decoder)]
            check(sizes[0] == sizes[1], self, "shared_embedding", "False where vocabularies or widths differ")

    @property
    def stacks(self) -> "Mapping[str, EncoderConfig | DecoderConfig]":
        """Return the stacks by the names of their modules, in the order in which they run."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def input_stack(self) -> EncoderConfig:
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

    def with_context_length(self, context_length: int) -> "Seq2SeqConfig":
        """Return the config of a model whose decoder has positions for so many tokens."""
        return replace(self, decoder=self.decoder.with_context_length(context_length))

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens that the decoder can generate."""
        return self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Return the number of positions of the decoder."""
        return self.decoder.context_length


ModelConfig = DecoderConfig | EncoderConfig | Seq2SeqConfig
