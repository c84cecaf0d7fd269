"""Nemotron 3 and 4, Minitron.

Llama with LayerNorm whose weights are counted from one, partial rotary embeddings, and a feed-forward without gate.
Source: transformers/models/nemotron/modeling_nemotron.py.
"""

from edgeformer.config import DecoderConfig, NormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Nemotron config.json."""
    fields.ignore("pretraining_tp")  # tensor parallelism of the training
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    fields.choice("kv_channels", {head_dim: None}, head_dim)  # NeMo's name of it
    return read_llama(
        fields,
        context_length,
        norm=NormConfig(kind="layer_norm", eps=fields.take("norm_eps", 1e-5), bias=True, offset=1.0),
        fraction=0.5,
        attention=read_attention_bias(fields),
        feed_forward={"gated": False, "bias": fields.take("mlp_bias", False)},
    )


FAMILY = Family(
    summary="Nemotron 3 and 4, Minitron: LayerNorm counted from one, squared ReLU, partial rotary",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"hidden_act": "relu2"},
)
