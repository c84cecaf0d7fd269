"""A decoder-only language model."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import (
    AlibiConfig,
    AttentionConfig,
    LearnedPositions,
    ModelConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
)
from edgeformer.layers import Block, Cache, Context, RotaryTable, make_norm, rotary_table
from edgeformer.layers.attention_bias import (
    AlibiBias,
    T5Bias,
    Visibility,
    group_size,
    group_table,
    random_blocks,
    t5_buckets,
)
from edgeformer.layers.position import ConstantTable, sinusoidal_table, temperature_table

T = TypeVar("T", bound=Hashable)

DISTANCES = SinusoidalPositions(interleaved=False)
"""Transformer-XL's relative positions: all sines, then all cosines."""


@dataclass(frozen=True)
class Run:
    """What the blocks of one forward pass read: the mask [B, T], the positions [B, S], and biases by their config."""

    attention_mask: Tensor
    positions: Tensor
    biases: dict[Hashable, Tensor]


class Decoder(nn.Module):
    """Embedding, blocks, final norm, head. Parameters are uninitialised until a checkpoint is loaded into them.

    Blocks whose positions, biases or patterns are equal share one table of them.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        hidden, length = config.hidden_size, config.context_length
        self.embedding = nn.Embedding(config.vocab_size, hidden, dtype=dtype)
        if config.position_embedding is not None:
            self.position_embedding = _position_embedding(config, dtype)
        self.embedding_norm = make_norm(config.embedding_norm, hidden, dtype=dtype)

        shared = SharedTables(config)
        self.shared = shared
        self.rotary = nn.ModuleList(RotaryTable(rotary, length, dtype) for rotary in shared.rotaries)
        self.relative = nn.ModuleList(
            AlibiBias(relative, dtype) if isinstance(relative, AlibiConfig) else T5Bias(relative, heads, length, dtype)
            for relative, heads in shared.relatives
        )
        self.visibility = nn.ModuleList(Visibility(pattern, length) for pattern in shared.patterns)
        self.temperature = nn.ModuleList(ConstantTable(length, 1, dtype) for _ in shared.temperatures)
        if shared.distances:
            self.distances = ConstantTable(length, hidden, dtype)

        self.blocks = nn.ModuleList(Block(block, hidden, dtype) for block in config.blocks)
        self.final_norm = make_norm(config.final_norm, hidden, dtype=dtype)
        if not config.tied_head:
            self.head = nn.Linear(hidden, config.vocab_size, bias=config.head_bias, dtype=dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, caches: list[Cache]) -> tuple[Tensor, list[Cache]]:
        """The forward contract of a decoder.

        input_ids int64 [B, S], attention_mask int64 [B, T], caches: past (key, value) of each block, [B, K, P, D]
        → logits [B, S, V] and the present caches, [B, K, T, D].
        """
        x, run = self.embed(input_ids, attention_mask)
        presents = []
        for index, past in enumerate(caches):
            x, present = self.run_block(index, x, past, run)
            presents.append(present)
        return self.unembed(x), presents

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Run]:
        """Embeddings of tokens and positions [B, S, E], and what the blocks of this run share."""
        positions = ops.token_positions(attention_mask, input_ids)
        x = self.embedding(input_ids)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        places = self.config.position_embedding
        if places is not None:
            offset = places.offset if isinstance(places, LearnedPositions) else 0
            x = x + self.position_embedding(positions + offset if offset else positions)
        x = self.embedding_norm(x)
        biases: dict[Hashable, Tensor] = {}
        if self.shared.relatives or self.shared.patterns:
            columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
            distances = positions.unsqueeze(-1) - columns  # [B, S, T]
            biases |= {key: bias(distances) for key, bias in zip(self.shared.relatives, self.relative, strict=True)}
            for pattern, visibility in zip(self.shared.patterns, self.visibility, strict=True):
                biases[pattern] = visibility(positions, columns, x.dtype)
        return x, Run(attention_mask, positions, biases)

    def run_block(self, index: int, x: Tensor, past: Cache, run: Run) -> tuple[Tensor, Cache]:
        """One block with the tables that it uses."""
        attention, shared = self.config.blocks[index].attention, self.shared
        bias = None
        for key in (_relative_key(attention), _pattern_key(attention)):
            if key in run.biases:
                bias = run.biases[key] if bias is None else bias + run.biases[key]
        rotary, temperature = attention.rotary, attention.query_temperature
        context = Context(
            attention_mask=run.attention_mask,
            positions=run.positions,
            rotary=None if rotary is None else self.rotary[shared.rotaries.index(rotary)],  # type: ignore[arg-type]
            bias=bias,
            distances=self.distances.table if isinstance(attention.relative, TransformerXLConfig) else None,
            temperature=None
            if temperature is None
            else self.temperature[shared.temperatures.index(temperature)](run.positions),
        )
        return self.blocks[index](x, past, context)

    def unembed(self, x: Tensor) -> Tensor:
        """Final norm and head: [B, S, E] → logits [B, S, V]."""
        x = self.final_norm(x)
        x = F.linear(x, self.embedding.weight) if self.config.tied_head else self.head(x)
        if self.config.logit_scale != 1:
            x = x * self.config.logit_scale
        cap = self.config.logit_softcap
        return x if cap is None else cap * torch.tanh(x / cap)


def _position_embedding(config: ModelConfig, dtype: torch.dtype) -> nn.Module:
    if isinstance(config.position_embedding, LearnedPositions):
        return nn.Embedding(config.position_embedding.rows, config.hidden_size, dtype=dtype)
    return ConstantTable(config.context_length, config.hidden_size, dtype)


class SharedTables:
    """The configs of what blocks share, each once: rotary tables, relative biases, patterns, temperatures."""

    def __init__(self, config: ModelConfig):
        attentions = [block.attention for block in config.blocks]
        self.rotaries = _distinct(attention.rotary for attention in attentions)
        self.relatives = _distinct(_relative_key(attention) for attention in attentions)
        self.patterns = _distinct(_pattern_key(attention) for attention in attentions)
        self.temperatures = _distinct(attention.query_temperature for attention in attentions)
        self.distances = any(isinstance(attention.relative, TransformerXLConfig) for attention in attentions)


def _distinct(configs: Iterable[T | None]) -> list[T]:
    return [config for config in dict.fromkeys(configs) if config is not None]


def _relative_key(attention: AttentionConfig) -> tuple[AlibiConfig | T5BiasConfig, int] | None:
    """A bias that depends on head and distance alone, so that equal blocks share it."""
    relative = attention.relative
    return (relative, attention.num_heads) if isinstance(relative, AlibiConfig | T5BiasConfig) else None


def _pattern_key(attention: AttentionConfig) -> AttentionConfig | None:
    """A pattern that the attention op cannot express by its window."""
    patterned = attention.chunk is not None or (attention.window is not None and not attention.sliding)
    return attention if patterned else None


def decoder_constants(config: ModelConfig) -> dict[str, Tensor]:
    """Compute what no checkpoint stores: the buffers of a `Decoder` by name, in float64 (or int64)."""
    shared, length, hidden = SharedTables(config), config.context_length, config.hidden_size
    values: dict[str, Tensor] = {}
    if isinstance(config.position_embedding, SinusoidalPositions):
        values["position_embedding.table"] = sinusoidal_table(config.position_embedding, length, hidden)
    for index, rotary in enumerate(shared.rotaries):
        cos, sin = rotary_table(rotary, length)
        values |= {f"rotary.{index}.cos": cos, f"rotary.{index}.sin": sin}
    for index, (relative, _) in enumerate(shared.relatives):
        if isinstance(relative, AlibiConfig):
            values[f"relative.{index}.slopes"] = torch.tensor(relative.slopes, dtype=torch.float64)
        else:
            values[f"relative.{index}.buckets"] = t5_buckets(relative, length)
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
