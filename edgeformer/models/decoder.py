"""A decoder-only language model."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgeformer import ops
from edgeformer.config import ModelConfig, RotaryConfig
from edgeformer.layers import Block, Cache, RMSNorm, RotaryTable, rotary_table


class Decoder(nn.Module):
    """Embedding, blocks, final norm, head. Parameters are uninitialised until a checkpoint is loaded into them.

    Blocks with the same `RotaryConfig` share one table.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.config = config
        distinct = distinct_rotaries(config)
        self.rotary_of_block = [
            None if block.attention.rotary is None else distinct.index(block.attention.rotary)
            for block in config.blocks
        ]
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.rotary = nn.ModuleList(RotaryTable(rotary, config.context_length, dtype) for rotary in distinct)
        self.blocks = nn.ModuleList(Block(block, config.hidden_size, dtype) for block in config.blocks)
        self.final_norm = RMSNorm(config.final_norm, config.hidden_size, dtype)
        if not config.tied_head:
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, caches: list[Cache]) -> tuple[Tensor, list[Cache]]:
        """The forward contract of a decoder.

        input_ids int64 [B, S], attention_mask int64 [B, T], caches: past (key, value) of each block, [B, K, P, D]
        → logits [B, S, V] and the present caches, [B, K, T, D].
        """
        x, positions = self.embed(input_ids, attention_mask)
        presents = []
        for index, past in enumerate(caches):
            x, present = self.run_block(index, x, attention_mask, past, positions)
            presents.append(present)
        return self.unembed(x), presents

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Token embeddings [B, S, E] and positions [B, S]."""
        return self.embedding(input_ids), ops.token_positions(attention_mask, input_ids)

    def run_block(
        self, index: int, x: Tensor, attention_mask: Tensor, past: Cache, positions: Tensor
    ) -> tuple[Tensor, Cache]:
        """One block with the rotary table that it uses."""
        which = self.rotary_of_block[index]
        rotary = None if which is None else self.rotary[which]
        return self.blocks[index](x, attention_mask, past, positions, rotary)

    def unembed(self, x: Tensor) -> Tensor:
        """Final norm and head: [B, S, E] → logits [B, S, V]."""
        x = self.final_norm(x)
        return F.linear(x, self.embedding.weight) if self.config.tied_head else self.head(x)


def distinct_rotaries(config: ModelConfig) -> list[RotaryConfig]:
    """The rotary embeddings that a model's blocks use, each once."""
    rotaries = dict.fromkeys(block.attention.rotary for block in config.blocks)
    return [rotary for rotary in rotaries if rotary is not None]


def decoder_constants(config: ModelConfig) -> dict[str, Tensor]:
    """Compute what no checkpoint stores: the buffers of a `Decoder` by name, in float64."""
    values: dict[str, Tensor] = {}
    for index, rotary in enumerate(distinct_rotaries(config)):
        cos, sin = rotary_table(rotary, config.context_length)
        values |= {f"rotary.{index}.cos": cos, f"rotary.{index}.sin": sin}
    return values
