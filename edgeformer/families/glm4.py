"""GLM-4-0414 and GLM-Z1.

GLM with norms before and after each branch. Source: transformers/models/glm4/modeling_glm4.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import glm
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GLM-4 config.json."""
    return glm.read_glm(fields, context_length, norm_placement="sandwich")


FAMILY = Family(
    summary="GLM-4-0414, GLM-Z1: norms before and after each branch",
    read_config=read_config,
    tensors={
        **glm.FAMILY.tensors,
        "blocks.*.attention_output_norm": "model.layers.*.post_self_attn_layernorm",
        "blocks.*.feed_forward_output_norm": "model.layers.*.post_mlp_layernorm",
    },
    defaults=glm.FAMILY.defaults,
)
