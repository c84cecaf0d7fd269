"""Gemma 3n: the text model of E2B and E4B.

Gemma 3 with four residual streams of which a block computes one (AltUp), a layer of low rank beside attention (LAuReL),
an embedding of its own for every layer, sparse gates in the first layers, normalized values, and last layers that read
earlier layers' keys and values. Source: transformers/models/gemma3n/modeling_gemma3n.py.
"""

from dataclasses import replace

from edgeformer.config import (
    AltUpConfig,
    DecoderConfig,
    FeedForwardConfig,
    QKNormConfig,
)
from edgeformer.families import gemma2
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields
from edgeformer.families._layer_input import LAYER_INPUT_TENSORS, OF_SHARING_LAYERS, read_layer_input
from edgeformer.families._layers import (
    FULL,
    SLIDING,
    every_nth_full,
    of_each_layer,
    read_layer_types,
    share_caches,
    with_windows,
)
from edgeformer.families._rotary import read_context_length, read_rotary_by_type
from edgeformer.families.llama import QK_NORM_TENSORS, read_attention_bias, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Gemma 3n text config.json."""
    # Fields of the training, of Gemma 3 and of generate(), which transformers' module does not read.
    fields.ignore("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar", "cache_implementation")
    layers, head_dim = fields.take("num_hidden_layers"), fields.take("head_dim")
    bases = {
        FULL: {"rope_theta": fields.take("rope_theta", 1e6), **fields.take("rope_scaling", {})},
        SLIDING: {"rope_theta": fields.take("rope_local_base_freq", 1e4)},
    }
    rotary = read_rotary_by_type(fields, head_dim, read_context_length(fields, context_length), bases)
    norm, activation = read_norm(fields), fields.choice("hidden_activation", ACTIVATIONS)
    embedding, layer_input = read_layer_input(fields, norm, activation["activation"])
    altup = AltUpConfig(
        streams=fields.take("altup_num_inputs"),
        active=fields.take("altup_active_idx"),
        output_scale=fields.take("altup_correct_scale"),
    )
    sizes = fields.take("intermediate_size")
    sizes = of_each_layer("intermediate_size", sizes if isinstance(sizes, list) else [sizes] * layers, layers)
    config = read_llama(
        fields,
        context_length,
        norm=norm,
        attention=read_attention_bias(fields)
        | {
            "scale": 1.0, "rotary": rotary[FULL], "qk_norm": QKNormConfig(norm=norm, over="head"),
            "value_norm": replace(norm, weight=False),
        },
        feed_forward={**activation, "intermediate_size": sizes[0]},
        block={
            "norm_placement": "sandwich", "laurel_rank": fields.take("laurel_rank"), "layer_input": layer_input,
            "altup": altup,
        },
        embedding_scale=fields.take("hidden_size") ** 0.5,
        logit_softcap=fields.take("final_logit_softcapping", None),
        per_layer_embedding=embedding,
    )  # fmt: skip
    types = read_layer_types(fields, every_nth_full(5, layers))
    config = with_windows(config, types, fields.take("sliding_window", None), rotary=rotary[SLIDING])
    config = _with_networks(config, sizes, _read_sparsity(fields, layers))
    return share_caches(config, types, fields.take("num_kv_shared_layers"))


def _read_sparsity(fields: Fields, layers: int) -> list[float]:
    sparse = 10 if layers > 10 else 0
    pattern: list[float] = fields.take("activation_sparsity_pattern", [0.95] * sparse + [0.0] * (layers - sparse))
    return of_each_layer("activation_sparsity_pattern", pattern, layers)


def _with_networks(config: DecoderConfig, sizes: list[int], sparsity: list[float]) -> DecoderConfig:
    """Return the config with an intermediate size and a sparsity per layer."""
    blocks = []
    for block, size, fraction in zip(config.blocks, sizes, sparsity, strict=True):
        assert isinstance(block.feed_forward, FeedForwardConfig)
        network = replace(block.feed_forward, intermediate_size=size, sparsity=fraction)
        blocks.append(replace(block, feed_forward=network))
    return replace(config, blocks=tuple(blocks))


FAMILY = Family(
    summary="Gemma 3n, text only: several residual streams, embeddings per layer, shared caches",
    read_config=read_config,
    tensors={
        **gemma2.FAMILY.tensors,
        **QK_NORM_TENSORS,
        **LAYER_INPUT_TENSORS,
        "streams.projections.*": "model.altup_projections.*",
        "merged_streams.projections.*": "model.altup_unembed_projections.*",
        "blocks.*.laurel.left": "model.layers.*.laurel.linear_left",
        "blocks.*.laurel.right": "model.layers.*.laurel.linear_right",
        "blocks.*.laurel.norm": "model.layers.*.laurel.post_laurel_norm",
        "blocks.*.altup.norm": "model.layers.*.altup.router_norm",
        "blocks.*.altup.router": "model.layers.*.altup.modality_router",
        "blocks.*.altup.prediction": "model.layers.*.altup.prediction_coefs",
        "blocks.*.altup.correction": "model.layers.*.altup.correction_coefs",
        "blocks.*.altup.output_scale.scale": "model.layers.*.altup.correct_output_scale",
    },
    defaults={
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0, "altup_correct_scale": True, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
        "laurel_rank": 64,
    },
    ignored_tensors=(OF_SHARING_LAYERS, r"model\.layers\.\d+\.altup\.correct_output_scale"),
)  # fmt: skip
