"""The part that decoders and encoders share: embeddings, blocks, and the tables that blocks share."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    Bidirectional,
    DisentangledConfig,
    LearnedPositions,
    RotaryConfig,
    SinusoidalPositions,
    StackConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.layers import Block, Cache, Context, LayerCache, RotaryTable, make_norm, rotary_table
from edgeformer.layers.attention.attention_bias import (
    AlibiBias,
    T5Bias,
    Visibility,
    group_size,
    group_table,
    random_blocks,
    t5_buckets,
)
from edgeformer.layers.attention.patch_windows import PatchBlocks
from edgeformer.layers.attention.relation import Relations, RelationTable, relation_rows
from edgeformer.layers.bottleneck import BottleneckBlock
from edgeformer.layers.position import ConstantTable, TokenAngles, sinusoidal_table, temperature_table

T = TypeVar("T", bound=Hashable)

DISTANCES = SinusoidalPositions(interleaved=False)
"""Layout of Transformer-XL's relative positions: all sines, then all cosines."""


@dataclass(frozen=True)
class Run:
    """The inputs that all blocks of one forward pass share.

    Attributes:
        attention_mask: int64 [B, T].
        positions: positions of the queries, int64 [B or 1, S].
        key_positions: positions of the keys, int64 [B or 1, T].
        token_mask: bool [B, S], which new tokens are tokens and not padding; None where no layer is recurrent.
        layer_inputs: per-layer embedding [B, S, layers, size]; None where there is none.
        biases: additive attention biases [B or 1, H or 1, S, T] by the config that they belong to.
        source_mask: int64 [B, source] with 0 for padding of the encoder's input; None without cross-attention.
        relations: those of disentangled attention by the config that they belong to.
        bidirectional: how the new tokens of a causal model attend to each other; None for causally.
        angles: by which tokens turn, by the rotary embedding, where `positions` do not say it.
        patch_blocks: those of patches that attend within windows; None where they attend to all.
    """

    attention_mask: Tensor
    positions: Tensor
    key_positions: Tensor
    biases: dict[Hashable, Tensor]
    source_mask: Tensor | None = None
    token_mask: Tensor | None = None
    relations: dict[Hashable, Relations] = field(default_factory=dict)
    layer_inputs: Tensor | None = None
    bidirectional: Bidirectional | None = None
    angles: dict[RotaryConfig, TokenAngles] = field(default_factory=dict)
    patch_blocks: PatchBlocks | None = None


class Stack(nn.Module):
    """Embeddings, blocks, final norm. Parameters are uninitialized until a checkpoint is loaded into them.

    Blocks with equal rotary embeddings, biases or attention patterns share one table of these.

    Args:
        source_size: width of the encoder's states that the blocks attend to; 0 without cross-attention.
    """

    def __init__(self, config: StackConfig, dtype: torch.dtype, source_size: int = 0):
        super().__init__()
        self.stack_config = config
        hidden, length = config.hidden_size, config.context_length
        if config.vocab_size:
            self.embedding = nn.Embedding(config.vocab_size, config.token_width, dtype=dtype)
        if config.position_embedding is not None:
            self.position_embedding = _position_embedding(config, dtype)
        self.embedding_norm = make_norm(config.embedding_norm, config.embedding_width, dtype=dtype)

        shared = SharedTables(config)
        self.shared = shared
        self.rotary = nn.ModuleList(RotaryTable(rotary, length, dtype) for rotary in shared.rotaries)
        self.relative = nn.ModuleList(
            AlibiBias(relative, dtype, causal)
            if isinstance(relative, AlibiConfig)
            else T5Bias(relative, heads, length, dtype)
            for relative, heads, causal in shared.relatives
        )
        self.relation = nn.ModuleList(RelationTable(each, hidden, length, dtype) for each in shared.relations)
        self.visibility = nn.ModuleList(Visibility(pattern, length) for pattern in shared.patterns)
        self.temperature = nn.ModuleList(ConstantTable(length, 1, dtype) for _ in shared.temperatures)
        if shared.distances:
            self.distances = ConstantTable(length, hidden, dtype)

        own = config.blocks[:1] if config.shared_blocks else config.blocks
        blocks = [
            BottleneckBlock(block, hidden, dtype) if block.bottleneck else Block(block, hidden, dtype, source_size)
            for block in own
        ]
        self.blocks = nn.ModuleList(blocks * len(config.blocks) if config.shared_blocks else blocks)
        self.final_norm = make_norm(config.final_norm, hidden, dtype=dtype)

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        """Return scaled token embeddings [B, S, E] of input_ids int64 [B, S]."""
        x: Tensor = self.embedding(input_ids)
        scale = self.stack_config.embedding_scale
        return x if scale == 1 else x * scale

    def add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x [B, S, E] plus the embeddings of its positions, int64 [B or 1, S]."""
        config = self.stack_config.position_embedding
        if config is None:
            return x
        offset = config.offset if isinstance(config, LearnedPositions) else 0
        embedded: Tensor = self.position_embedding(positions + offset if offset else positions)
        return x + embedded

    def shared_biases(self, positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> dict[Hashable, Tensor]:
        """Return the attention biases that blocks share, by their config.

        positions int64 [B or 1, S] are those of queries, key_positions int64 [B or 1, T] those of keys.
        """
        biases: dict[Hashable, Tensor] = {}
        if self.shared.relatives or self.shared.patterns:
            distances = positions.unsqueeze(-1) - key_positions.unsqueeze(1)  # [B, S, T]
            biases |= {key: bias(distances) for key, bias in zip(self.shared.relatives, self.relative, strict=True)}
            for pattern, visibility in zip(self.shared.patterns, self.visibility, strict=True):
                biases[pattern] = visibility(positions, key_positions, dtype)
        return biases

    def shared_relations(self, positions: Tensor, key_positions: Tensor) -> dict[Hashable, Relations]:
        """Return the relations of disentangled attention, by their config; positions are those of `shared_biases`."""
        if not self.shared.relations:
            return {}
        distances = positions.unsqueeze(-1) - key_positions.unsqueeze(1)  # [B, S, T]
        return {key: table(distances) for key, table in zip(self.shared.relations, self.relation, strict=True)}

    def run_block(
        self, index: int, x: Tensor, past: LayerCache, run: Run, encoder_cache: Cache | None = None
    ) -> tuple[Tensor, LayerCache]:
        """Run one block on x [B, S, E] and return its output and its present cache.

        past: what the block keeps, empty where nothing precedes x; of a block that shares an earlier layer's keys and
        values, those with the new tokens. encoder_cache: key and value of the encoder's states for this block; None
        without cross-attention.
        """
        attention = self.stack_config.blocks[index].attention
        context = self._context(run) if attention is None else self._attention_context(attention, run)
        if run.layer_inputs is not None:
            context = replace(context, layer_input=run.layer_inputs[:, :, index])
        result: tuple[Tensor, LayerCache] = self.blocks[index](x, past, context, encoder_cache)
        return result

    def _context(self, run: Run) -> Context:
        """Return the inputs of a block without self-attention."""
        return Context(
            attention_mask=run.attention_mask,
            positions=run.positions,
            key_positions=run.key_positions,
            token_mask=run.token_mask,
            bidirectional=run.bidirectional,
        )

    def _attention_context(self, attention: AttentionConfig, run: Run) -> Context:
        """Return the inputs of a block with self-attention: also tables and biases that blocks share."""
        shared = self.shared
        bias = None
        for key in (_relative_key(attention), _pattern_key(attention)):
            if key in run.biases:
                bias = run.biases[key] if bias is None else bias + run.biases[key]
        temperature = attention.query_temperature
        return replace(
            self._context(run),
            rotary=None if attention.rotary is None else self._rotary(attention.rotary, run),
            patch_blocks=run.patch_blocks,
            bias=bias,
            relations=run.relations.get(attention.relative),
            distances=self.distances.table if isinstance(attention.relative, TransformerXLConfig) else None,
            temperature=None
            if temperature is None
            else self.temperature[shared.temperatures.index(temperature)](run.positions),
            source_mask=run.source_mask,
        )

    def _rotary(self, rotary: RotaryConfig, run: Run) -> RotaryTable | TokenAngles:
        """Return the cosines and sines of a rotary embedding."""
        return run.angles.get(rotary) or self.rotary_table(rotary)

    def rotary_table(self, rotary: RotaryConfig) -> RotaryTable:
        """Return the table of a rotary embedding by positions."""
        table: RotaryTable = self.rotary[self.shared.rotaries.index(rotary)]  # type: ignore[assignment]
        return table


def _position_embedding(config: StackConfig, dtype: torch.dtype) -> nn.Module:
    if isinstance(config.position_embedding, LearnedPositions):
        return nn.Embedding(config.position_embedding.rows, config.embedding_width, dtype=dtype)
    return ConstantTable(config.context_length, config.embedding_width, dtype)


class SharedTables:
    """The distinct configs of tables that blocks share: rotary, relative biases, visibility patterns, temperatures."""

    def __init__(self, config: StackConfig):
        attentions = config.attentions
        self.rotaries = _distinct(attention.rotary for attention in attentions)
        self.relatives = _distinct(_relative_key(attention) for attention in attentions)
        self.patterns = _distinct(_pattern_key(attention) for attention in attentions)
        self.relations = _distinct(_relations_key(attention) for attention in attentions)
        self.temperatures = _distinct(attention.query_temperature for attention in attentions)
        self.distances = any(isinstance(attention.relative, TransformerXLConfig) for attention in attentions)


def _distinct(configs: Iterable[T | None]) -> list[T]:
    return [config for config in dict.fromkeys(configs) if config is not None]


def _relative_key(attention: AttentionConfig) -> tuple[AlibiConfig | T5BiasConfig, int, bool] | None:
    """Return the key of a bias that depends on head and distance only, which equal blocks share; None without one."""
    relative = attention.relative
    if not isinstance(relative, AlibiConfig | T5BiasConfig):
        return None
    return relative, attention.num_heads, attention.causal


def _relations_key(attention: AttentionConfig) -> DisentangledConfig | None:
    """Return the config of a table of relations, which equal blocks share; None without one."""
    return attention.relative if isinstance(attention.relative, DisentangledConfig) else None


def _pattern_key(attention: AttentionConfig) -> AttentionConfig | None:
    """Return the config of a visibility pattern that the attention op's `window` cannot express, or None."""
    patterned = attention.chunk is not None or (attention.window is not None and not attention.sliding)
    return attention if patterned else None


def stack_constants(config: StackConfig) -> dict[str, Tensor]:
    """Compute the buffers of a `Stack`, which no checkpoint stores: name → float64 or int64 tensor."""
    shared, length, hidden = SharedTables(config), config.context_length, config.hidden_size
    values: dict[str, Tensor] = {}
    if isinstance(config.position_embedding, SinusoidalPositions):
        width = config.embedding_width
        values["position_embedding.table"] = sinusoidal_table(config.position_embedding, length, width)
    for index, rotary in enumerate(shared.rotaries):
        cos, sin = rotary_table(rotary, length)
        values |= {f"rotary.{index}.cos": cos, f"rotary.{index}.sin": sin}
    for index, (relative, _, _) in enumerate(shared.relatives):
        if isinstance(relative, AlibiConfig):
            values[f"relative.{index}.slopes"] = torch.tensor(relative.slopes, dtype=torch.float64)
        else:
            values[f"relative.{index}.buckets"] = t5_buckets(relative, length)
    for index, relations in enumerate(shared.relations):
        values[f"relation.{index}.rows"] = relation_rows(relations, length)
    for index, pattern in enumerate(shared.patterns):
        size = group_size(pattern)
        if size is not None:
            values[f"visibility.{index}.group"] = group_table(size, length)
        if pattern.random_blocks is not None:
            values[f"visibility.{index}.blocks"] = random_blocks(pattern.random_blocks, length)
    for index, temperature in enumerate(shared.temperatures):
        values[f"temperature.{index}.table"] = temperature_table(temperature, length)
    if shared.distances:
        values["distances.table"] = sinusoidal_table(DISTANCES, length, hidden)
    return values
