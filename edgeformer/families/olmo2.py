"""OLMo 2.

Llama with norms after each branch instead of before it, and norms of all query heads and all key heads. Source:
transformers/models/olmo2/modeling_olmo2.py.
"""

from edgeformer.config import DecoderConfig, QKNormConfig, RotaryConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama, read_norm


def read_olmo2(fields: Fields, context_length: int | None, rotary: RotaryConfig | None = None) -> DecoderConfig:
    """Read the fields that OLMo 2 and 3 share. rotary: None reads that of all layers."""
    qk_norm = QKNormConfig(norm=read_norm(fields), over="projection")
    return read_llama(
        fields,
        context_length,
        attention={"qk_norm": qk_norm, **read_attention_bias(fields), **({} if rotary is None else {"rotary": rotary})},
        block={"norm_placement": "output"},
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an OLMo 2 config.json."""
    return read_olmo2(fields, context_length)


FAMILY = Family(
    summary="OLMo 2: norms after attention and feed-forward",
    read_config=read_config,
    tensors=TENSORS
    | QK_NORM_TENSORS
    | {
        "blocks.*.attention_output_norm": "model.layers.*.post_attention_layernorm",
        "blocks.*.feed_forward_output_norm": "model.layers.*.post_feedforward_layernorm",
    },
    defaults={"rms_norm_eps": 1e-5},
    reads_is_causal=True,
)
