"""ERNIE 4.5, dense models.

Llama with interleaved rotary embeddings. Source: transformers/models/ernie4_5/modeling_ernie4_5.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an ERNIE 4.5 config.json."""
    bias = fields.take("use_bias", False)
    return read_llama(
        fields,
        context_length,
        interleaved=True,
        attention={"qkv_bias": bias, "output_bias": bias},
        feed_forward={"bias": bias},
    )


FAMILY = Family(
    summary="ERNIE 4.5, dense: interleaved rotary embeddings",
    read_config=read_config,
    tensors=TENSORS,
    defaults={
        "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
)  # fmt: skip
