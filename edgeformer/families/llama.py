"""Llama 1–3, TinyLlama, SmolLM2, and other models with model_type `llama`; many families are variants of it.

Source: transformers/models/llama/modeling_llama.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from edgeformer.config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._mtp import MTP, PREDICTION
from edgeformer.families._rotary import read_context_length, read_rotary

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})

TENSORS = {
    "embedding": "model.embed_tokens",
    "blocks.*.attention_norm": "model.layers.*.input_layernorm",
    "blocks.*.attention.query": "model.layers.*.self_attn.q_proj",
    "blocks.*.attention.key": "model.layers.*.self_attn.k_proj",
    "blocks.*.attention.value": "model.layers.*.self_attn.v_proj",
    "blocks.*.attention.output": "model.layers.*.self_attn.o_proj",
    "blocks.*.feed_forward_norm": "model.layers.*.post_attention_layernorm",
    "blocks.*.feed_forward.gate": "model.layers.*.mlp.gate_proj",
    "blocks.*.feed_forward.up": "model.layers.*.mlp.up_proj",
    "blocks.*.feed_forward.down": "model.layers.*.mlp.down_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}

# Tensor names of variants with norms of queries and keys.
QK_NORM_TENSORS = {
    "blocks.*.attention.query_norm": "model.layers.*.self_attn.q_norm",
    "blocks.*.attention.key_norm": "model.layers.*.self_attn.k_norm",
}


def read_norm(fields: Fields, *, weight: bool = True, offset: float = 0.0) -> NormConfig:
    """Read the config of all norms; weight, offset: see `NormConfig`."""
    return NormConfig(eps=fields.take("rms_norm_eps", 1e-6), weight=weight, offset=offset)


def read_attention_bias(fields: Fields) -> dict[str, Any]:
    """Read `attention_bias`, which applies to all four projections."""
    bias = fields.take("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def read_llama(
    fields: Fields,
    context_length: int | None,
    *,
    norm: NormConfig | None = None,
    interleaved: bool = False,
    fraction: float | None = None,
    attention: Mapping[str, Any] = NO_CHANGES,
    feed_forward: Mapping[str, Any] = NO_CHANGES,
    block: Mapping[str, Any] = NO_CHANGES,
    **model: Any,
) -> DecoderConfig:
    """Read the fields that Llama and its variants share; keywords are the fields in which a variant differs.

    Args:
        fields: config.json.
        context_length: requested context length; None for all positions.
        norm: config of all norms; None reads rms_norm_eps.
        interleaved, fraction: of rotary embeddings; see `read_rotary`.
        attention, feed_forward, block, model: fields of AttentionConfig, FeedForwardConfig, BlockConfig, DecoderConfig.
            What feed_forward has of hidden_act and intermediate_size is not read, nor positions that attention has.
    """
    hidden_size = fields.take("hidden_size")
    num_heads = fields.take("num_attention_heads")
    head_dim = fields.take("head_dim", hidden_size // num_heads)
    context_length = read_context_length(fields, context_length)
    if "rotary" not in attention:
        rotary = read_rotary(fields, head_dim, context_length, interleaved=interleaved, fraction=fraction)
        attention = {"rotary": rotary, **attention}
    if "activation" not in feed_forward:
        feed_forward = {**fields.choice("hidden_act", ACTIVATIONS, "silu"), **feed_forward}
    fields.ignore("intermediate_size")  # it is of no layer where feed_forward has a width
    if "intermediate_size" not in feed_forward:
        feed_forward = {"intermediate_size": fields.take("intermediate_size"), **feed_forward}
    norm = norm or read_norm(fields)
    heads = {"num_heads": num_heads, "num_kv_heads": fields.take("num_key_value_heads", num_heads)}
    plain = AttentionConfig(
        **heads, head_dim=head_dim, scale=head_dim**-0.5, qkv_bias=False, output_bias=False, rotary=None
    )
    varied = BlockConfig(
        attention=replace(plain, **attention),
        feed_forward=FeedForwardConfig(**{"bias": False, **feed_forward}),
        norm=norm,
    )
    plain_model = {
        "vocab_size": fields.take("vocab_size"),
        "hidden_size": hidden_size,
        "context_length": context_length,
        "blocks": (replace(varied, **block),) * fields.take("num_hidden_layers"),
        "final_norm": norm,
        "tied_head": fields.take("tie_word_embeddings", False),
    }
    return DecoderConfig(**{**plain_model, **model})


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Llama config.json."""
    # Tensor parallelism of the training, which does not change results, and a flag of SmolLM2's training.
    fields.ignore("pretraining_tp", "is_llama_config")
    fields.ignore(MTP.count, MTP.intermediate_size)  # of tiny-llama, read by `with_mtp`
    fields.choice("rope_interleaved", {False: False}, False)
    return read_llama(
        fields,
        context_length,
        attention=read_attention_bias(fields),
        feed_forward={"bias": fields.take("mlp_bias", False)},
    )


FAMILY = Family(
    summary="Llama 1–3, TinyLlama, SmolLM2; every RoPE scaling of transformers, biases, tied or untied heads",
    read_config=read_config,
    tensors=TENSORS,
    # Old checkpoints store a table that the config determines.
    computed_tensors={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "rotary_frequencies"},
    ignored_tensors=(PREDICTION,),
    reads_is_causal=True,
    mtp=MTP,
)
