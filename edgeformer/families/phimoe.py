"""Phi-3.5-MoE.

Llama with layer norms, and experts in every layer that a sparse mixer chooses. Source:
transformers/models/phimoe/modeling_phimoe.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig, LongRopeScaling, NormConfig, RotaryConfig, RouterConfig
from edgeformer.errors import ConfigError
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import SLIDING, with_windows
from edgeformer.families._rotary import read_context_length, read_rope_fields, read_rotary
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama

MODULES = "model.layers.*.block_sparse_moe"


def read_positions(fields: Fields, context_length: int | None) -> RotaryConfig:
    """Read rotary positions; LongRoPE's attention factors are short_mscale and long_mscale.

    transformers 5.23 reads long texts by the short factors and long_mscale, and warns of nothing. The model's own code
    (modeling_phimoe.py beside its weights) takes the long factors, as it was trained.
    """
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    positions = read_context_length(fields, context_length)
    rotary = read_rotary(fields, head_dim, positions, base=1e6, known=("short_mscale", "long_mscale"))
    if rotary.scaling is None:
        return rotary
    given = read_rope_fields(fields)
    if not isinstance(rotary.scaling, LongRopeScaling) or not {"short_mscale", "long_mscale"} <= given.keys():
        raise ConfigError(
            "config.json's rope parameters are neither plain nor longrope with a short_mscale and a long_mscale."
        )
    short, long = float(given["short_mscale"]), rotary.long
    long = None if long is None else replace(long, attention_factor=float(given["long_mscale"]))
    return replace(rotary, scaling=replace(rotary.scaling, attention_factor=short, long=long))


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Phi-MoE config.json."""
    fields.ignore("input_jitter_noise")
    fields.choice("num_experts_per_tok", {2: 2})  # the sparse mixer of transformers chooses two
    config = read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=fields.take("rms_norm_eps"), bias=True),
        attention={"rotary": read_positions(fields, context_length), **read_attention_bias(fields)},
        head_bias=fields.take("lm_head_bias"),
    )
    window = fields.take("sliding_window", None)
    config = config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)
    router = RouterConfig(scoring="sparse_mixer", normalized=False, jitter=fields.take("router_jitter_noise"))
    return with_experts(config, read_experts(fields, config.blocks[0].feed_forward, router, num_experts=16))


FAMILY = Family(
    summary="Phi-3.5-MoE: experts chosen by a sparse mixer, layer norms, LongRoPE",
    read_config=read_config,
    tensors=TENSORS | expert_tensors(MODULES, ("w1", "w3", "w2"), f"{MODULES}.gate|{MODULES}.router"),
    defaults={
        "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "router_jitter_noise": 0.01,
        "lm_head_bias": False,
    },
)  # fmt: skip
