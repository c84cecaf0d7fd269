"""The fields and tensor names that models with Mamba-2 layers share."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig, StateSpaceConfig
from edgeformer.errors import ConfigError
from edgeformer.families._family import Fields

MAMBA_WORDS, ATTENTION_WORDS = ("linear_attention", "mamba"), ("full_attention", "attention")
"""Names of layer types in transformers 5 and 4."""

SILU: Mapping[str, None] = {"silu": None, "swish": None}
"""Names of the only activation that a Mamba-2 layer has here."""


def state_space_tensors(module: str) -> dict[str, str]:
    """Return the tensor names of a Mamba-2 layer; module: its name in the checkpoint."""
    return {
        "blocks.*.recurrent.input": f"{module}.in_proj",
        "blocks.*.recurrent.conv_weight": f"{module}.conv1d.weight",
        "blocks.*.recurrent.conv_bias": f"{module}.conv1d.bias",
        "blocks.*.recurrent.step_bias": f"{module}.dt_bias",
        "blocks.*.recurrent.decay_rate_log": f"{module}.A_log",
        "blocks.*.recurrent.skip": f"{module}.D",
        "blocks.*.recurrent.norm": f"{module}.norm",
        "blocks.*.recurrent.output": f"{module}.out_proj",
    }


def read_steps(fields: Fields) -> dict[str, Any]:
    """Read the bounds of Δ, `time_step_limit`."""
    low, high = fields.take("time_step_limit", (0.0, math.inf))
    # JSON has no infinity: transformers writes {"__float__": "Infinity"}, or the name alone, which Python reads.
    high = float(high["__float__"] if isinstance(high, dict) else high)
    return {"min_step": float(low), "max_step": None if math.isinf(high) else high}


def read_state_space(fields: Fields, hidden_size: int, **otherwise: Any) -> StateSpaceConfig:
    """Read the fields `mamba_*` of Bamba and its relatives; otherwise: fields of StateSpaceConfig that differ."""
    # It is how transformers computes, not what.
    fields.ignore("mamba_chunk_size")
    # transformers applies it after the convolution and to the gate, too.
    fields.choice("hidden_act", SILU, "silu")
    num_heads, num_groups = fields.take("mamba_n_heads"), fields.take("mamba_n_groups")
    width = fields.take("mamba_d_ssm", fields.take("mamba_expand") * hidden_size)
    head_dim = fields.take("mamba_d_head")
    head_dim = width // num_heads if head_dim == "auto" else head_dim
    if num_heads * head_dim != width:
        raise ConfigError(
            f"config.json has {num_heads} Mamba heads of {head_dim}, and its layers have {width} channels."
        )
    bias = fields.take("mamba_proj_bias")
    fields_of_all = {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "state_size": fields.take("mamba_d_state"),
        "num_groups": num_groups,
        "kernel_size": fields.take("mamba_d_conv"),
        "input_bias": bias,
        "conv_bias": fields.take("mamba_conv_bias"),
        "output_bias": bias,
        "norm_groups": num_groups,
        **read_steps(fields),
    }
    return StateSpaceConfig(**(fields_of_all | otherwise))


def with_state_spaces(config: DecoderConfig, types: list[str], recurrent: StateSpaceConfig) -> DecoderConfig:
    """Return the config with a Mamba-2 layer in place of attention where `types`, one per layer, say so.

    Raises ConfigError for another type or number of layers.
    """
    for unknown in sorted(set(types) - {*MAMBA_WORDS, *ATTENTION_WORDS}):
        known = ", ".join((*ATTENTION_WORDS, *MAMBA_WORDS))
        raise ConfigError(f"config.json's layer types have {unknown!r}; supported here: {known}.")
    if len(types) != len(config.blocks):
        raise ConfigError(f"config.json has types of {len(types)} layers and num_hidden_layers = {len(config.blocks)}.")
    blocks = (
        replace(block, attention=None, recurrent=recurrent) if kind in MAMBA_WORDS else block
        for block, kind in zip(config.blocks, types, strict=True)
    )
    return replace(config, blocks=tuple(blocks))
