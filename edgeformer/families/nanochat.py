"""nanochat.

Llama with norms without weights, also of embeddings, queries and keys, rotation by negative angles, and a feed-forward
without gate. Source: transformers/models/nanochat/modeling_nanochat.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig, QKNormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length, read_rotary
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a nanochat config.json."""
    norm = read_norm(fields, weight=False)
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    rotary = read_rotary(fields, head_dim, read_context_length(fields, context_length))
    return read_llama(
        fields,
        context_length,
        norm=norm,
        attention={
            "rotary": replace(rotary, backward=True),
            "qk_norm": QKNormConfig(norm=norm, over="head", after_rotary=True),
            **read_attention_bias(fields),
        },
        feed_forward={"gated": False},
        embedding_norm=norm,
        logit_softcap=fields.take("final_logit_softcapping", None),
    )


FAMILY = Family(
    summary="nanochat: norms without weights, rotation by negative angles",
    read_config=read_config,
    tensors={
        **TENSORS,
        "blocks.*.feed_forward.up": "model.layers.*.mlp.fc1",
        "blocks.*.feed_forward.down": "model.layers.*.mlp.fc2",
    },
    defaults={"hidden_act": "relu2", "final_logit_softcapping": 15.0},
)
