"""Llama 4, MobileLLM-R1, MobileLLM-Pro, and other models with model_type `llama4_text`.

Llama with two kinds of layers. Layers with rotary embeddings have chunked attention and normalize queries and keys.
The others have full attention and scale queries by their position. Some layers have experts, which read weighted
inputs, and a shared network. Source: transformers/models/llama4/modeling_llama4.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import (
    DecoderConfig,
    FeedForwardConfig,
    NormConfig,
    QKNormConfig,
    QueryTemperature,
    RouterConfig,
)
from edgeformer.families._experts import TRAINING, Tables, read_experts, shared_tensors, with_experts
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._layers import CHUNKED, FULL, of_each_layer, read_layer_types, vary_attention, within
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Llama 4 text config.json."""
    layers = fields.take("num_hidden_layers")
    fields.ignore("for_llm_compressor")
    config = read_llama(
        fields,
        context_length,
        interleaved=True,
        attention=read_attention_bias(fields),
        feed_forward={"intermediate_size": fields.take("intermediate_size_mlp")},
    )
    interval = fields.take("no_rope_layer_interval")
    rotated = fields.take("no_rope_layers", None) or [(layer + 1) % interval for layer in range(layers)]
    rotated = of_each_layer("no_rope_layers", rotated, layers)
    types = read_layer_types(fields, [CHUNKED if rotates else FULL for rotates in rotated], CHUNKED)
    chunk = within(fields.take("attention_chunk_size"), config)

    norm = NormConfig(eps=fields.take("rms_norm_eps"), weight=False)
    qk_norm = QKNormConfig(norm=norm, over="head", after_rotary=True) if fields.take("use_qk_norm") else None
    # Up to position floor_scale − 2 the factor is one, so that shorter contexts need no table.
    floor, scale = fields.take("floor_scale"), fields.take("attn_scale")
    scales = fields.take("attn_temperature_tuning") and floor <= config.context_length
    temperature = QueryTemperature(floor_scale=floor, scale=scale) if scales else None

    def of_layer(kind: str, rotates: int) -> dict[str, Any]:
        position = {"qk_norm": qk_norm} if rotates else {"rotary": None, "query_temperature": temperature}
        return {"chunk": chunk if kind == CHUNKED else None, **position}

    return with_layers_of_experts(fields, vary_attention(config, map(of_layer, types, rotated)))


def with_layers_of_experts(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """Return the config with experts in `moe_layers`, by default in every layer that ends a step."""
    step, layers = fields.take("interleave_moe_layer_step"), len(config.blocks)
    chosen = fields.take("moe_layers", None)
    if chosen is None:
        chosen = list(range(step - 1, layers, step))
    if not chosen:
        fields.ignore(*TRAINING, "num_local_experts", "num_experts_per_tok")
        return config
    dense = config.blocks[0].feed_forward
    assert isinstance(dense, FeedForwardConfig)
    network = replace(dense, intermediate_size=fields.take("intermediate_size"))
    router = RouterConfig(scoring="sigmoid", normalized=False)
    experts = read_experts(fields, network, router, num_experts=16, shared=network, weighted_input=True)
    return with_experts(config, experts, [layer in chosen for layer in range(layers)])


MODULE = "model.layers.*.feed_forward"
EXPERT_TENSORS: Tables = {
    "blocks.*.feed_forward.router.projection": f"{MODULE}.router",
    "blocks.*.feed_forward.experts.gate.weight": Packed(f"{MODULE}.experts.gate_up_proj", 0, "experts"),
    "blocks.*.feed_forward.experts.up.weight": Packed(f"{MODULE}.experts.gate_up_proj", 1, "experts"),
    "blocks.*.feed_forward.experts.down.weight": f"{MODULE}.experts.down_proj",
    **shared_tensors(f"{MODULE}.shared_expert"),
}

FAMILY = Family(
    summary="Llama 4 and MobileLLM-R1: chunks, layers without positions, scaled queries, layers with experts",
    read_config=read_config,
    tensors={
        **{ours: theirs.replace(".mlp.", ".feed_forward.") for ours, theirs in TENSORS.items()},
        **EXPERT_TENSORS,
    },
    transposed=("*.experts.gate_up_proj", "*.experts.down_proj"),
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size_mlp": 16384, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "interleave_moe_layer_step": 1, "use_qk_norm": True, "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192, "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
        "num_experts_per_tok": 1,
    },
)  # fmt: skip
