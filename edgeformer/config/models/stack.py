"""The fields that all stacks of blocks share, and the layers before the first block."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, Self

from edgeformer.config.block import AttentionConfig, BlockConfig
from edgeformer.config.layer_input import PerLayerEmbedding
from edgeformer.config.norm import NormConfig
from edgeformer.config.pictures import Grid, PatchStem, PatchVectors, PatchWindows
from edgeformer.config.position import LearnedPositions, RotaryConfig, SinusoidalPositions, TransformerXLConfig
from edgeformer.contract.tensors import CacheGeometry
from edgeformer.documents import schema
from edgeformer.documents.schema import check
from edgeformer.errors import ConfigError, ContextLengthError

Task = Literal[
    "causal-lm", "seq2seq-lm", "encoder", "vision-encoder", "dual-encoder", "image-text-encoder", "image-text-to-text",
    "audio-text-to-text",
]  # fmt: skip
"""The task of a model, which the manifest stores; it is the key of tables by kind. Every class of configs has one."""

Form = Literal["decoder", "encoder", "encoder-decoder"]
"""Kinds of graphs, as clients tell them apart."""

NO_CACHE = CacheGeometry(layers=())
"""The cache geometry of an encoder, which has no cache."""


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
class TokenDropout:
    """Masks that are dropped: they have no embedding, and those of all tokens of the text are scaled to make up for it.

    The factor is (1 − trained) / (1 − observed), where observed is the fraction of the text's tokens that are masks.
    Source: transformers/models/esm/modeling_esm.py.

    Attributes:
        mask_token: id of the mask.
        trained: fraction of masks in texts that the model was trained with.
    """

    mask_token: int
    trained: float

    def __post_init__(self) -> None:
        check(self.mask_token >= 0, self, "mask_token", "0 or more")
        check(0 <= self.trained < 1, self, "trained", "at least 0 and below 1")


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
        check(len(self.blocks) > 0 or self.patch_vectors is not None, self, "blocks", "at least one block")
        check(not self.shared_blocks or len(set(self.blocks)) == 1, self, "shared_blocks", "False where blocks differ")
        positions = self.position_embedding
        if isinstance(positions, LearnedPositions):
            enough = positions.rows - positions.offset >= self.table_length
            check(enough, self, "position_embedding", f"given a row for each of {self.context_length} positions")
        if isinstance(positions, SinusoidalPositions) or any(
            isinstance(attention.relative, TransformerXLConfig) for attention in self.attentions
        ):
            check(self.hidden_size % 2 == 0, self, "hidden_size", "even where positions are sinusoidal")
        lengths = {rotary.long.above for rotary in self._rotaries if rotary.long is not None}
        check(len(lengths) <= 1, self, "blocks", "all with long factors above the same length")
        if self.short_context is not None and not self.reads_request_length:
            raise ContextLengthError(
                f"rotary embeddings have other factors for texts longer than {self.short_context} tokens, which only "
                f"a decoder of text takes account of. Export with --context-length {self.short_context} or less."
            )

    @property
    def reads_request_length(self) -> bool:
        """Return whether the graph may know how long a request will be, which rotary embeddings may depend on."""
        return False

    @property
    def table_length(self) -> int:
        """Return the number of positions that a learned table has rows for."""
        return self.context_length

    @property
    def embedding_width(self) -> int:
        """Return the width of the embedding tables; see `EncoderConfig.embedding_size`."""
        return self.hidden_size

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """Return the self-attention of every block that has one."""
        return tuple(block.attention for block in self.blocks if block.attention is not None)

    @property
    def keys_are_its_own(self) -> bool:
        """Whether blocks keep keys and values, and each of them reads those of its own alone."""
        return bool(self.attentions) and all(attention.shares is None for attention in self.attentions)

    @property
    def short_context(self) -> int | None:
        """Return the most tokens of requests with the short factors of LongRoPE; None where all have the same ones."""
        return next((rotary.long.above for rotary in self._rotaries if rotary.long is not None), None)

    @property
    def _rotaries(self) -> list[RotaryConfig]:
        return [attention.rotary for attention in self.attentions if attention.rotary is not None]

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
    def token_projection(self) -> TokenProjection | None:
        """Return None: only encoders project the rows of their tokens."""
        return None

    @property
    def audio(self) -> AudioStem | None:
        """Return None: only encoders read spectrograms."""
        return None

    @property
    def pool(self) -> int | None:
        """Return None: only towers of sound have a pool behind their blocks."""
        return None

    @property
    def patch_stem(self) -> PatchStem | None:
        """Return None: only towers of pictures read pixels."""
        return None

    @property
    def interpolated(self) -> tuple[Grid, Grid] | None:
        """Return None: only towers of pictures interpolate positions."""
        return None

    @property
    def fractional_grids(self) -> tuple[Grid, Grid] | None:
        """Return None: only towers of pictures find positions by parts of height and width."""
        return None

    @property
    def patch_vectors(self) -> PatchVectors | None:
        """Return None: only towers of pictures of any size read patches that a processor has cut."""
        return None

    @property
    def padded_grids(self) -> tuple[Grid, ...]:
        """Return the rows and columns of pictures to try a tower with that pads them to one number of patches.

        Other stacks have none.
        """
        return ()

    @property
    def picture_windows(self) -> PatchWindows | None:
        """Return None: only towers of pictures attend within windows of them."""
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
    def similarity_parameters(self) -> int:
        """Return 0: only dual encoders compare what two stacks compute."""
        return 0

    @property
    def stacks(self) -> "Mapping[str, StackConfig]":
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

    @property
    def end_token(self) -> int | None:
        """Return None: only the heads of encoders read a token at its place in a text."""
        return None

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return self.patch_stem is not None

    @property
    def length_as_read(self) -> int:
        """Return the context length by which a family reads this config from its checkpoint again."""
        return self.context_length

    def with_context_length(self, context_length: int) -> Self:
        """Return the config of a model with positions for so many tokens."""
        return replace(self, context_length=context_length)

    def with_picture_size(self, height: int, width: int) -> Self:
        """Return the config of a model for pictures of another size: itself, for only towers read pictures."""
        return self

    def with_patches(self, side: int, square: int, frames: int, most: int) -> Self:
        """Return the config of a model for other patches: itself, for only towers read pictures."""
        return self

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
