"""GLM-4 of 2024.

Llama with partial and interleaved rotary embeddings, and a packed gate. Source:
transformers/models/glm/modeling_glm.py.
"""

from typing import Literal

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields, packed_gate_up
from edgeformer.families.llama import TENSORS, read_llama


def read_glm(
    fields: Fields, context_length: int | None, norm_placement: Literal["pre", "sandwich"] = "pre"
) -> DecoderConfig:
    """Read the fields that GLM and GLM-4 share."""
    return read_llama(
        fields,
        context_length,
        interleaved=True,
        fraction=0.5,
        attention={"qkv_bias": fields.take("attention_bias")},
        block={"norm_placement": norm_placement},
    )


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a GLM config.json."""
    return read_glm(fields, context_length)


FAMILY = Family(
    summary="GLM-4 of 2024: partial, interleaved rotary embeddings",
    read_config=read_config,
    tensors={**TENSORS, **packed_gate_up("model.layers.*.mlp.gate_up_proj")},
    defaults={
        "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-7, "attention_bias": True,
    },
)  # fmt: skip
