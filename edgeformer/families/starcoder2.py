"""StarCoder2.

Llama with LayerNorm, a feed-forward without gate, biases, and a window in every layer or none.
Source: transformers/models/starcoder2/modeling_starcoder2.py.
"""

from edgeformer.config import DecoderConfig, NormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import SLIDING, with_windows
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a StarCoder2 config.json."""
    fields.ignore("embedding_dropout", "residual_dropout")
    # Fields of checkpoints that transformers ignores; it reads norm_epsilon.
    fields.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "layer_norm_epsilon")
    for name, value in (("mlp_type", "default"), ("norm_type", "layer_norm"), ("scale_attn_weights", True)):
        fields.choice(name, {value: None}, value)
    bias = fields.take("use_bias", True)
    config = read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=fields.take("norm_epsilon", 1e-5), bias=True),
        attention={"qkv_bias": bias, "output_bias": bias},
        feed_forward={"gated": False, "bias": bias},
    )
    window = fields.take("sliding_window", None)
    return config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)


FAMILY = Family(
    summary="StarCoder2; with or without windows and biases",
    read_config=read_config,
    tensors={
        **TENSORS,
        "blocks.*.feed_forward.up": "model.layers.*.mlp.c_fc",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.c_proj",
    },
    defaults={"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 2, "tie_word_embeddings": True},
)
