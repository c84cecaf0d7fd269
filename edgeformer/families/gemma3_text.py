"""Gemma 3: models for text only, and the text part of the others; EmbeddingGemma, whose tokens see both ways.

Gemma 2 with norms of queries and keys instead of a softcap of scores, and another rotary base in layers with a window.
Source: transformers/models/gemma3/modeling_gemma3.py.
"""

from edgeformer.config import DecoderConfig, EncoderConfig, QKNormConfig
from edgeformer.families import gemma2
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, bidirectional
from edgeformer.families._rotary import read_context_length, read_rotary_by_type
from edgeformer.families.llama import QK_NORM_TENSORS, read_norm


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig | EncoderConfig:
    """Read a Gemma 3 text config.json."""
    # transformers has this field and ignores it.
    fields.choice("attn_logit_softcapping", {None: None}, None)
    # transformers writes this beside the layer_types that follow from it.
    fields.ignore("_sliding_window_pattern")
    # In transformers 4, scaling applied to layers with full attention only.
    otherwise = {
        FULL: {"rope_theta": fields.take("rope_theta", 1e6), **fields.take("rope_scaling", {})},
        SLIDING: {"rope_theta": fields.take("rope_local_base_freq", 1e4)},
    }
    head_dim, length = fields.take("head_dim"), read_context_length(fields, context_length)
    rotary = read_rotary_by_type(fields, head_dim, length, otherwise)
    qk_norm = QKNormConfig(norm=read_norm(fields, offset=1.0), over="head")
    both_ways = bool(fields.take("use_bidirectional_attention", False))
    config = gemma2.read_gemma2(
        fields,
        context_length,
        pattern=fields.take("sliding_window_pattern", 6),
        attention={"qk_norm": qk_norm, "rotary": rotary[FULL]},
        both_ways=both_ways,
        rotary=rotary[SLIDING],
    )
    return bidirectional(config) if both_ways else config


FAMILY = Family(
    summary="Gemma 3, text only: windows in five of six layers, two rotary bases; EmbeddingGemma",
    read_config=read_config,
    tensors={**gemma2.FAMILY.tensors, **QK_NORM_TENSORS},
    defaults={**gemma2.FAMILY.defaults, "attn_logit_softcapping": None, "final_logit_softcapping": None},
)
