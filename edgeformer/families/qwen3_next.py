"""Qwen3-Next.

Gated DeltaNet in most layers, attention with a gated output in the others; experts in all layers but those in
`mlp_only_layers` and between the steps of `decoder_sparse_step`. A key head's projections stand together, with those of
the value heads that it serves. Source: transformers/models/qwen3_next/modeling_qwen3_next.py.
"""

from dataclasses import replace

from edgeformer.config import DecoderConfig
from edgeformer.families._delta_net import DEFAULTS, DELTA_TENSORS, GATED_TENSORS, read_gated
from edgeformer.families._experts import with_experts
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._mtp import MTP, PREDICTION
from edgeformer.families.llama import TENSORS
from edgeformer.families.qwen2_moe import GATED_EXPERT_TENSORS, read_gated_experts
from edgeformer.families.qwen3_moe import sparse_layers

PACKED = {
    f"blocks.*.recurrent.{name}": Packed(f"model.layers.*.linear_attn.{module}", part, "key_heads")
    for module, names in (("in_proj_qkvz", ("query_key_value", "gate")), ("in_proj_ba", ("beta", "decay")))
    for part, name in enumerate(names)
}


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Qwen3-Next config.json."""
    fields.choice("use_sliding_window", {False: False}, False)
    fields.ignore("num_nextn_predict_layers")  # read by `with_mtp`
    config = read_gated(fields, context_length)
    experts = read_gated_experts(fields, config, num_experts=512)
    return with_experts(config, experts, sparse_layers(fields, len(config.blocks)))


FAMILY = Family(
    summary="Qwen3-Next: Gated DeltaNet, attention with a gated output in some layers, experts",
    read_config=read_config,
    tensors=TENSORS | GATED_TENSORS | DELTA_TENSORS | PACKED | GATED_EXPERT_TENSORS,
    defaults=DEFAULTS | {
        "num_key_value_heads": 2, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "norm_topk_prob": True,
    },
    ignored_tensors=(PREDICTION,),
    mtp=replace(MTP, count="num_nextn_predict_layers", if_absent=1),
)  # fmt: skip
