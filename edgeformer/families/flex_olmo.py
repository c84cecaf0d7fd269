"""FlexOlmo.

OLMo 2 with experts in every layer. Source: transformers/models/flex_olmo/modeling_flex_olmo.py.
"""

from edgeformer.config import DecoderConfig, RouterConfig
from edgeformer.families import olmo2
from edgeformer.families._experts import expert_tensors, read_experts, with_experts
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a FlexOlmo config.json."""
    config = olmo2.read_config(fields, context_length)
    router = RouterConfig(scoring="softmax", normalized=fields.take("norm_topk_prob"))
    return with_experts(config, read_experts(fields, config.blocks[0].feed_forward, router, num_experts=7))


FAMILY = Family(
    summary="FlexOlmo: experts in every layer, norms after attention and experts",
    read_config=read_config,
    tensors={**olmo2.FAMILY.tensors, **expert_tensors("model.layers.*.mlp")},
    defaults={"num_experts_per_tok": 5, "norm_topk_prob": False, "rope_theta": 500000.0},
)
