"""Whole models: decoders, encoders, and pairs of them."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self

from edgeformer import schema
from edgeformer.config.block import Activation, BlockConfig, NormConfig
from edgeformer.config.position import LearnedPositions, SinusoidalPositions, TransformerXLConfig
from edgeformer.contract import CacheGeometry
from edgeformer.errors import ConfigError
from edgeformer.schema import check


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """What decoders and encoders have in common: embeddings, blocks, a final norm.

    context_length: how many positions the model may see; position tables have that many rows. embedding_scale: token
    embeddings are multiplied by it before positions are added; embedding_norm: their sum is normalised. final_norm:
    None where the blocks end with a norm.
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    blocks: tuple[BlockConfig, ...]
    final_norm: NormConfig | None
    embedding_scale: float = 1.0
    position_embedding: LearnedPositions | SinusoidalPositions | None = None
    embedding_norm: NormConfig | None = None

    def __post_init__(self) -> None:
        for field in ("hidden_size", "context_length"):
            check(getattr(self, field) > 0, self, field, "positive")
        check(len(self.blocks) > 0, self, "blocks", "at least one block")
        positions = self.position_embedding
        if isinstance(positions, LearnedPositions):
            enough = positions.rows - positions.offset >= self.context_length
            check(enough, self, "position_embedding", f"given a row for each of {self.context_length} positions")
        if isinstance(positions, SinusoidalPositions) or any(
            isinstance(block.attention.relative, TransformerXLConfig) for block in self.blocks
        ):
            check(self.hidden_size % 2 == 0, self, "hidden_size", "even where positions are sinusoidal")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data. Runs of equal blocks are written once, with how often they repeat."""
        data = schema.fields_to_json(self)
        data["blocks"] = [
            {"repeat": len(list(run)), "block": schema.to_json(block)} for block, run in groupby(self.blocks)
        ]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], path: str = "") -> Self:
        """Read what `to_json` made. Raises ConfigError naming the field that is wrong."""
        try:
            blocks = [block for run in data["blocks"] for block in [run["block"]] * run["repeat"]]
        except (KeyError, TypeError):
            raise ConfigError(f"a {cls.__name__} needs blocks: a list of {{repeat: number, block: {{…}}}}.") from None
        return schema.fields_from_json(cls, data | {"blocks": blocks}, path)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A language model: alone, or with cross-attention to an encoder in every block.

    tied_head: the output projection is the embedding table itself, one copy of it. logits:
    softcap(logit_scale · head(x)).
    """

    kind: Literal["decoder"] = "decoder"
    tied_head: bool
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.vocab_size > 0, self, "vocab_size", "positive")
        check(self.logit_softcap is None or self.logit_softcap > 0, self, "logit_softcap", "positive, or None")
        check(all(block.attention.causal for block in self.blocks), self, "blocks", "causal in a decoder")
        # Every client reads one number of heads and one head_dim for the whole cache (DESIGN's tensor contract).
        geometries = {(block.attention.num_kv_heads, block.attention.head_dim) for block in self.blocks}
        check(len(geometries) == 1, self, "blocks", "of one cache geometry (num_kv_heads and head_dim)")
        across = {block.cross_attention and _cross_geometry(block) for block in self.blocks}
        check(len(across) == 1, self, "blocks", "all with cross-attention of one geometry, or all without")

    @property
    def cache_geometry(self) -> CacheGeometry:
        """The shape of the key/value cache."""
        attention = self.blocks[0].attention
        return CacheGeometry(
            num_layers=len(self.blocks), num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
        )

    @property
    def cross_geometry(self) -> CacheGeometry | None:
        """The shape of the encoder's keys and values that the blocks read; None for a decoder alone."""
        if self.blocks[0].cross_attention is None:
            return None
        heads, head_dim = _cross_geometry(self.blocks[0])
        return CacheGeometry(num_layers=len(self.blocks), num_kv_heads=heads, head_dim=head_dim)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The most tokens that each layer ever looks back on; None for all of the context."""
        attentions = [block.attention for block in self.blocks]
        return tuple(attention.window if attention.sliding else None for attention in attentions)


def _cross_geometry(block: BlockConfig) -> tuple[int, int]:
    assert block.cross_attention is not None
    return block.cross_attention.num_heads, block.cross_attention.head_dim


@dataclass(frozen=True, kw_only=True)
class AudioStem:
    """Whisper's way into an encoder: a log-mel spectrogram through two convolutions of width 3, each with GELU.

    The second halves the number of frames. Source: arXiv 2212.04356.
    """

    mel_bins: int

    def __post_init__(self) -> None:
        check(self.mel_bins > 0, self, "mel_bins", "positive")


@dataclass(frozen=True, kw_only=True)
class MaskedLMHead:
    """logits of every token: norm(activation(dense(x))) times the embedding table, and a bias for each token.

    tied: False where the table is not that of the embedding, but the head's own.
    """

    kind: Literal["masked_lm"] = "masked_lm"
    activation: Activation
    norm: NormConfig
    dense_bias: bool = True
    bias: bool = True
    tied: bool = True


@dataclass(frozen=True, kw_only=True)
class ClassificationHead:
    """logits of `labels`: a projection of the pooled states, or of each token's where pooling is None.

    pooling: `first` token or `mean` of all. dense: with which activation(dense(x)) comes first; norm: of that.
    """

    kind: Literal["classification"] = "classification"
    labels: tuple[str, ...]
    pooling: Literal["first", "mean"] | None
    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        check(len(self.labels) > 0, self, "labels", "at least one label")
        check(self.norm is None or self.dense is not None, self, "norm", "None without dense")


@dataclass(frozen=True, kw_only=True)
class PoolingHead:
    """One vector for each text: the state of its `first` token or the `mean` of all, of length one if normalised."""

    kind: Literal["pooling"] = "pooling"
    pooling: Literal["first", "mean"]
    normalize: bool


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """A stack of blocks that see a whole text, or a recording (`audio`, without vocabulary: vocab_size is 0).

    token_types: rows of the table of segment embeddings, 0 for none; the one row of a table of one is added to every
    token. head: what is computed of the last states.
    """

    kind: Literal["encoder"] = "encoder"
    token_types: int = 0
    audio: AudioStem | None = None
    head: MaskedLMHead | ClassificationHead | PoolingHead | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = self.vocab_size == 0 if self.audio else self.vocab_size > 0
        check(expected, self, "vocab_size", "0 for audio, else positive")
        self_attention = all(not block.attention.causal and block.cross_attention is None for block in self.blocks)
        check(self_attention, self, "blocks", "not causal and without cross-attention in an encoder")
        if self.audio is not None:
            check(self.token_types == 0, self, "token_types", "0 for audio")
            check(self.head is None, self, "head", "None for audio")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """An encoder, and a decoder with cross-attention to it; shared_embedding: both have one table of tokens."""

    kind: Literal["seq2seq"] = "seq2seq"
    encoder: EncoderConfig
    decoder: DecoderConfig
    shared_embedding: bool

    def __post_init__(self) -> None:
        check(self.encoder.head is None, self, "encoder", "without a head")
        check(self.decoder.cross_geometry is not None, self, "decoder", "with cross-attention in its blocks")
        if self.shared_embedding:
            sizes = [(half.vocab_size, half.hidden_size) for half in (self.encoder, self.decoder)]
            check(sizes[0] == sizes[1], self, "shared_embedding", "False where vocabularies or widths differ")

    @property
    def vocab_size(self) -> int:
        """Of what is written."""
        return self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Of what is written."""
        return self.decoder.context_length


ModelConfig = DecoderConfig | EncoderConfig | Seq2SeqConfig
