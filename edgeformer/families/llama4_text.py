"""MobileLLM-R1, MobileLLM-Pro, and other models with model_type `llama4_text` without experts.

Llama with two kinds of layers. Layers with rotary embeddings have chunked attention and normalize queries and keys.
The others have full attention and scale queries by their position. Source:
transformers/models/llama4/modeling_llama4.py.
"""

from typing import Any

from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig, QueryTemperature
from edgeformer.errors import ConfigError
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import CHUNKED, FULL, of_each_layer, read_layer_types, vary_attention, within
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Llama 4 text config.json."""
    layers = fields.take("num_hidden_layers")
    refuse_experts(fields, layers)
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

    return vary_attention(config, map(of_layer, types, rotated))


def refuse_experts(fields: Fields, layers: int) -> None:
    """Raise a ConfigError if a layer is a mixture of experts."""
    fields.ignore("num_local_experts", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    fields.ignore("router_jitter_noise", "for_llm_compressor")
    step, experts = fields.take("interleave_moe_layer_step"), fields.take("moe_layers", None)
    if experts is None:
        experts = list(range(step - 1, layers, step))
    if experts:
        raise ConfigError(
            f"layers {', '.join(map(str, experts))} of this llama4_text model are mixtures of experts (moe_layers), "
            "and edgeformer has no blocks for those. Export a dense model."
        )


FAMILY = Family(
    summary="Llama 4 without experts (MobileLLM-R1): chunks, layers without positions, scaled queries",
    read_config=read_config,
    tensors={ours: theirs.replace(".mlp.", ".feed_forward.") for ours, theirs in TENSORS.items()},
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size_mlp": 16384, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "interleave_moe_layer_step": 1, "use_qk_norm": True, "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192, "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
    },
)  # fmt: skip
