"""HyperCLOVA X SEED.

Granite with norms after each branch, too. Source: transformers/models/hyperclovax/modeling_hyperclovax.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.granite import read_granite
from edgeformer.families.llama import TENSORS


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a HyperCLOVA X config.json."""
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    return read_granite(
        fields,
        context_length,
        scale=fields.take("attention_multiplier", head_dim**-0.5),
        logit_scale=fields.take("logits_scaling", 1.0),
        norm_placement="sandwich" if fields.take("use_post_norm") else "pre",
    )


FAMILY = Family(
    summary="HyperCLOVA X SEED: multipliers, norms before and after each branch",
    read_config=read_config,
    tensors={
        **TENSORS,
        "blocks.*.attention_output_norm": "model.layers.*.post_norm1",
        "blocks.*.feed_forward_output_norm": "model.layers.*.post_norm2",
    },
    defaults={"use_post_norm": True},
)
