"""Mixtral 8x7B and other models with model_type `mixtral`.

Mistral with experts in every layer, of which the router's softmax weighs two. Source:
transformers/models/mixtral/modeling_mixtral.py.
"""

from edgeformer.config import DecoderConfig, RouterConfig
from edgeformer.families import mistral
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Mixtral config.json."""
    config = mistral.read_config(fields, context_length)
    router = RouterConfig(scoring="softmax", normalized=True)
    return with_experts(config, read_experts(fields, config.blocks[0].feed_forward, router, num_experts=8))


FAMILY = Family(
    summary="Mixtral: experts in every layer",
    read_config=read_config,
    tensors=TENSORS | expert_tensors("model.layers.*.block_sparse_moe", ("w1", "w3", "w2")),
    defaults={
        "num_key_value_heads": 8, "rope_theta": 1000000.0, "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 2,
    },
)  # fmt: skip
