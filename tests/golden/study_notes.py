"""Shared by the golden tests: edgeformer's modules in float64 with given weights, and numbers of study notes.

The examples come from five sets of study notes on transformer architecture (in Chinese; quoted here in English). Every
example runs through edgeformer's modules. Where a printed number or formula is wrong, its test says so and asserts the
right one. Properties of both encoders and decoders are tested with decoders; `test_golden_encoders.py` has the rest.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
)
from edgeformer.layers import Attention, Cache, Context
from edgeformer.models import Decoder, Encoder, build_model, model_constants

Module = TypeVar("Module", bound=nn.Module)

LAYER_NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)


def tensor(*numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def as_printed(values: Tensor, decimals: int = 3) -> list[float]:
    """Return numbers rounded to the decimals that a note prints."""
    return [round(value, decimals) for value in values.flatten().tolist()]


def given(module: Module, weights: Mapping[str, Tensor]) -> Module:
    """Fill a module; every parameter must be given, a shared one by its first name."""
    assert weights.keys() == dict(module.named_parameters()).keys()
    module.load_state_dict(weights, strict=False)
    return module.requires_grad_(False)


def seeded(module: Module, seed: int = 0) -> Module:
    """Fill a module with normal noise."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.requires_grad_(False)


def attention_config(heads: int = 1, head_dim: int = 4, **fields) -> AttentionConfig:
    """Attention of the first Transformer: every head has its keys, scores are divided by the root of head_dim."""
    plain = {"num_kv_heads": heads, "scale": head_dim**-0.5, "qkv_bias": False, "output_bias": False, "rotary": None}
    return AttentionConfig(num_heads=heads, head_dim=head_dim, **(plain | fields))


def block_config(attention: AttentionConfig, **fields) -> BlockConfig:
    feed_forward = FeedForwardConfig(intermediate_size=8, activation="relu", bias=True, gated=False)
    return BlockConfig(**({"attention": attention, "feed_forward": feed_forward, "norm": LAYER_NORM} | fields))


def model_config(*blocks: BlockConfig, **fields) -> DecoderConfig:
    sizes = {"vocab_size": 16, "hidden_size": 4, "context_length": 16, "final_norm": None, "tied_head": True}
    return DecoderConfig(blocks=blocks or (block_config(attention_config()),), **(sizes | fields))


def encoder_config(*blocks: BlockConfig, **fields) -> EncoderConfig:
    sizes = {"vocab_size": 16, "hidden_size": 4, "context_length": 16, "final_norm": None}
    return EncoderConfig(blocks=blocks or (block_config(attention_config(causal=False)),), **(sizes | fields))


def filled(config: ModelConfig, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a model with random parameters, some of which `weights` replaces."""
    model = build_model(config, torch.float64)
    given(model, {name: value.double() for name, value in RandomWeights(config, seed=0).items()} | dict(weights or {}))
    for name, value in model_constants(config).items():
        model.get_buffer(name).copy_(value)
    return model


def decoder(config: DecoderConfig, weights: Mapping[str, Tensor] | None = None) -> Decoder:
    return filled(config, weights)


def encoder(config: EncoderConfig, weights: Mapping[str, Tensor] | None = None) -> Encoder:
    return filled(config, weights)


def empty_cache(config: AttentionConfig, batch: int = 1) -> Cache:
    nothing = torch.empty(batch, config.num_kv_heads, 0, config.head_dim, dtype=torch.float64)
    return nothing, nothing


def from_the_start(tokens: int, batch: int = 1) -> Context:
    """Return the context of a text without a past."""
    positions = torch.arange(tokens).expand(batch, -1)
    return Context(torch.ones(batch, tokens, dtype=torch.int64), positions, key_positions=positions)


def attend(attention: Attention, x: Tensor) -> Tensor:
    """Return the output [S, E] for one text x [S, E]."""
    return attention(x.unsqueeze(0), empty_cache(attention.config), from_the_start(len(x)))[0][0]


def attention_weights(queries: Tensor, keys: Tensor, **fields) -> Tensor:
    """Return the attention weights [T, T] of queries and keys [T, D], read through one-hot values."""
    tokens, size = queries.shape
    assert size <= tokens
    pad, one_hot = (0, tokens - size), torch.eye(tokens, dtype=torch.float64)
    attention = Attention(attention_config(head_dim=tokens, **fields), tokens, torch.float64)
    weights = {
        "query.weight": nn.functional.pad(queries, pad).t(),
        "key.weight": nn.functional.pad(keys, pad).t(),
        "value.weight": one_hot,
        "output.weight": one_hot,
    }
    return attend(given(attention, weights), one_hot)


def dependence(model: Decoder | Encoder, tokens: int) -> list[str]:
    """Return a pattern whose row i has an x at j if the output of token i depends on token j, and a dot if not."""

    def hidden(ids: Tensor) -> Tensor:
        if isinstance(model, Encoder):
            return model.encode(ids)
        x, run = model.embed(ids, torch.ones_like(ids))
        for index, block in enumerate(model.config.blocks):
            x, _ = model.run_block(index, x, empty_cache(block.attention, len(ids)), run)
        return x

    # The text itself, and one text per token with that token replaced.
    ids = torch.arange(tokens).expand(tokens + 1, -1).clone()
    ids[range(1, tokens + 1), range(tokens)] = model.config.vocab_size - 1
    plain, *changed = hidden(ids)
    reads = torch.stack([(plain - other).abs().amax(-1) > 1e-9 for other in changed], 1)
    return ["".join("x" if read else "." for read in row) for row in reads.tolist()]
