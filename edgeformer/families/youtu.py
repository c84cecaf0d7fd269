"""Youtu-LLM.

Llama with latent attention. Source: transformers/models/youtu/modeling_youtu.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._latent import LATENT_TENSORS, read_latent
from edgeformer.families.llama import read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Youtu config.json."""
    fields.ignore("embedding_initializer_range")
    latent = read_latent(fields, context_length, interleaved=fields.take("rope_interleave"))
    return read_llama(fields, context_length, attention=latent)


FAMILY = Family(
    summary="Youtu-LLM: latent attention",
    read_config=read_config,
    tensors=LATENT_TENSORS,
    defaults={
        "num_key_value_heads": 16, "tie_word_embeddings": True, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_interleave": True,
    },
)  # fmt: skip
