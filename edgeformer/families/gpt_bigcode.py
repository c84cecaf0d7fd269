"""StarCoder, SantaCoder: GPT-2 with one key and value for all heads.

Source: transformers/models/gpt_bigcode/modeling_gpt_bigcode.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import gpt2
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families._layers import vary_attention


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GPTBigCode config.json."""
    # Precision of the softmax in float16, and options of an early inference server.
    fields.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner")
    fields.ignore("max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache")
    fields.ignore("validate_runner_input", "num_key_value_heads")
    fields.choice("scale_attn_by_inverse_layer_idx", {False: None}, False)
    config = gpt2.read_config(fields, context_length)
    if not fields.take("multi_query", True):
        return config
    return vary_attention(config, [{"num_kv_heads": 1}] * len(config.blocks))


FAMILY = Family(
    summary="StarCoder, SantaCoder; multi-query or multi-head",
    read_config=read_config,
    tensors={**gpt2.FAMILY.tensors, **packed_qkv("transformer.h.*.attn.c_attn", "groups")},
    computed_tensors=gpt2.FAMILY.computed_tensors,
)
