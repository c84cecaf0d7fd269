"""MiniCPM 3.

Llama with latent attention, and multipliers of embeddings, branches and logits. Source:
transformers/models/minicpm3/modeling_minicpm3.py.
"""

import math

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families._latent import LATENT_TENSORS, read_latent
from edgeformer.families.llama import read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a MiniCPM3 config.json."""
    fields.ignore("pretraining_tp")
    hidden_size, depth = fields.take("hidden_size"), math.sqrt(fields.take("num_hidden_layers"))
    return read_llama(
        fields,
        context_length,
        attention=read_latent(fields, context_length, interleaved=False),
        feed_forward={"bias": fields.take("mlp_bias", False)},
        block={"residual_scale": fields.take("scale_depth", depth) / depth},
        embedding_scale=float(fields.take("scale_emb")),
        logit_scale=fields.take("dim_model_base", hidden_size) / hidden_size,
    )


FAMILY = Family(
    summary="MiniCPM 3: latent attention, multipliers of embeddings, branches and logits",
    read_config=read_config,
    tensors=LATENT_TENSORS,
    defaults={
        "num_key_value_heads": 40, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "kv_lora_rank": 256,
        "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 256,
    },
)  # fmt: skip
