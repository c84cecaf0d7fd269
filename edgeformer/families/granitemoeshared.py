"""Granite with experts and a network that all tokens share.

Source: transformers/models/granitemoeshared/modeling_granitemoeshared.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig, FeedForwardConfig
from edgeformer.families import granite
from edgeformer.families._experts import Tables
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families.granitemoe import EXPERT_TENSORS, read_granite_experts

SHARED_TENSORS: Tables = {
    "blocks.*.feed_forward.shared.gate": Packed("model.layers.*.shared_mlp.input_linear", 0),
    "blocks.*.feed_forward.shared.up": Packed("model.layers.*.shared_mlp.input_linear", 1),
    "blocks.*.feed_forward.shared.down": "model.layers.*.shared_mlp.output_linear",
}


def read_shared(fields: Fields, dense: Any) -> FeedForwardConfig | None:
    """Read the shared network, which is like `dense`; None where it has no width."""
    width = fields.take("shared_intermediate_size")
    return replace(dense, intermediate_size=width) if width else None


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GraniteMoeShared config.json."""
    fields.choice("mlp_bias", {False: False}, False)
    config = granite.read_config(fields, context_length)
    return read_granite_experts(fields, config, shared=read_shared(fields, config.blocks[0].feed_forward))


FAMILY = Family(
    summary="Granite with experts and a shared network",
    read_config=read_config,
    tensors=EXPERT_TENSORS | SHARED_TENSORS,
    defaults={"num_experts_per_tok": 2, "shared_intermediate_size": 0},
)
