"""Gemma 4: the text model of E2B, E4B, 31B and, with experts, 26B-A4B.

Gemma 3 with normalized values, a head_dim and a number of key-value heads of their own in layers with full attention,
where keys may be the values too, an embedding of its own for every layer, last layers that read earlier layers' keys
and values, and a learned scale of every block's output. Where there are experts, they stand beside the dense network.
Source: transformers/models/gemma4/modeling_gemma4.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import BlockConfig, DecoderConfig, ExpertsConfig, FeedForwardConfig, QKNormConfig, RouterConfig
from edgeformer.errors import ConfigError
from edgeformer.families import gemma2
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._experts import expert_tensors
from edgeformer.families._family import Family, Fields
from edgeformer.families._layer_input import LAYER_INPUT_TENSORS, OF_SHARING_LAYERS, read_layer_input
from edgeformer.families._layers import (
    FULL,
    SLIDING,
    every_nth_full,
    read_layer_types,
    share_caches,
    vary_attention,
    with_windows,
)
from edgeformer.families._rotary import read_context_length, read_rotary_by_type
from edgeformer.families.llama import QK_NORM_TENSORS, read_attention_bias, read_llama, read_norm

ROTARY: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
"""Rotary parameters where config.json has none."""

MLP, LAYER = "blocks.*.feed_forward", "model.layers.*"


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Gemma 4 text config.json."""
    # Tokens of images see each other both ways; there are none here.
    fields.choice("use_bidirectional_attention", {None: None, "vision": None}, None)
    layers, head_dim = fields.take("num_hidden_layers"), fields.take("head_dim")
    types = read_layer_types(fields, every_nth_full(6, layers))
    types = [*types[:-1], FULL]  # transformers has full attention in the last layer, whatever config.json says
    shape = _read_full_shape(fields, types)
    sizes = {SLIDING: head_dim, FULL: shape["head_dim"]}
    bases = {kind: {} if fields.take("rope_parameters", {}) else parameters for kind, parameters in ROTARY.items()}
    rotary = read_rotary_by_type(fields, sizes, read_context_length(fields, context_length), bases)
    norm, activation = read_norm(fields), fields.choice("hidden_activation", ACTIVATIONS)
    embedding, layer_input = read_layer_input(fields, norm, activation["activation"])
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        attention=read_attention_bias(fields)
        | {
            "scale": 1.0, "rotary": rotary[SLIDING], "qk_norm": QKNormConfig(norm=norm, over="head"),
            "value_norm": replace(norm, weight=False),
        },
        feed_forward=activation,
        block={"norm_placement": "sandwich", "layer_input": layer_input, "output_scale": True},
        embedding_scale=fields.take("hidden_size") ** 0.5,
        logit_softcap=fields.take("final_logit_softcapping", None),
        per_layer_embedding=embedding,
    )  # fmt: skip
    full = {"rotary": rotary[FULL], "value_from_key": fields.take("attention_k_eq_v"), **shape}
    config = vary_attention(config, (full if kind == FULL else {} for kind in types))
    config = with_windows(config, types, fields.take("sliding_window", None))
    config = share_caches(config, types, fields.take("num_kv_shared_layers"))
    wide, experts = fields.take("use_double_wide_mlp"), _read_experts(fields, config)
    return replace(config, blocks=tuple(_with_network(block, wide, experts) for block in config.blocks))


def _read_full_shape(fields: Fields, types: list[str]) -> dict[str, int]:
    """Read head_dim and num_kv_heads of layers with full attention, in the form of the release or of transformers 5."""
    heads = fields.take("num_global_key_value_heads", None) if fields.take("attention_k_eq_v") else None
    shape = {"head_dim": fields.take("global_head_dim"), "num_key_value_heads": heads}
    # transformers pads the numbers of layers with zeros, so that they sort.
    given: dict[str, dict[str, Any]] = {
        layer.lstrip("0") or "0": each for layer, each in fields.take("per_layer_config", {}).items()
    }
    if given:
        full = {str(layer) for layer, kind in enumerate(types) if kind == FULL}
        distinct = {tuple(sorted(each.items())) for each in given.values()}
        if set(given) != full or len(distinct) > 1 or not set(dict(*distinct)) <= shape.keys():
            raise ConfigError(
                f"config.json has per_layer_config = {given}; supported here: one head_dim and num_key_value_heads for "
                "all layers with full attention."
            )
        shape = {"head_dim": fields.take("head_dim"), "num_key_value_heads": None, **dict(*distinct)}
    heads = shape["num_key_value_heads"] or fields.take("num_key_value_heads")
    return {"head_dim": shape["head_dim"], "num_kv_heads": heads}


def _read_experts(fields: Fields, config: DecoderConfig) -> ExpertsConfig | None:
    """Read the experts that stand beside the dense network, or None."""
    count, used = fields.take("num_experts", 0), fields.take("top_k_experts", 0)
    size, dense = fields.take("moe_intermediate_size", 0), config.blocks[0].feed_forward
    if not fields.take("enable_moe_block"):
        return None
    assert isinstance(dense, FeedForwardConfig)
    norm = config.blocks[0].norm
    router = RouterConfig(
        scoring="softmax", normalized=True, norm=norm, logit_scale=config.hidden_size**-0.5, expert_scale=True
    )
    return ExpertsConfig(
        num_experts=count,
        experts_per_token=used,
        expert=replace(dense, intermediate_size=size),
        router=router,
        shared=dense,
        branch_norm=norm,
    )


def _with_network(block: BlockConfig, wide: bool, experts: ExpertsConfig | None) -> BlockConfig:
    """Return a block with its network: in layers that share keys and values, it may be twice as wide."""
    dense, shares = block.feed_forward, block.attention is not None and block.attention.shares is not None
    assert isinstance(dense, FeedForwardConfig)
    dense = replace(dense, intermediate_size=dense.intermediate_size * (1 + (wide and shares)))
    return replace(block, feed_forward=dense if experts is None else replace(experts, shared=dense))


FAMILY = Family(
    summary="Gemma 4, text only: two shapes of heads, embeddings per layer, shared caches, experts",
    read_config=read_config,
    tensors={
        **gemma2.FAMILY.tensors,
        **QK_NORM_TENSORS,
        **LAYER_INPUT_TENSORS,
        **expert_tensors(LAYER, router=f"{LAYER}.router.proj"),
        **{f"{MLP}.shared.{part}": f"{LAYER}.mlp.{part}_proj" for part in ("gate", "up", "down")},
        "blocks.*.output_scale.scale": f"{LAYER}.layer_scalar",
        f"{MLP}.router.norm.weight": f"{LAYER}.router.scale",
        f"{MLP}.router.expert_scale": f"{LAYER}.router.per_expert_scale",
        f"{MLP}.shared_norm": f"{LAYER}.pre_feedforward_layernorm",
        f"{MLP}.shared_output_norm": f"{LAYER}.post_feedforward_layernorm_1",
        f"{MLP}.experts_norm": f"{LAYER}.pre_feedforward_layernorm_2",
        f"{MLP}.experts_output_norm": f"{LAYER}.post_feedforward_layernorm_2",
    },
    defaults={
        "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "global_head_dim": 512, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
        "tie_word_embeddings": True, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "attention_k_eq_v": False, "num_kv_shared_layers": 0, "enable_moe_block": False, "use_double_wide_mlp": False,
    },
    ignored_tensors=(OF_SHARING_LAYERS,),
)  # fmt: skip
