"""Command R and Aya.

Llama with a parallel residual and one LayerNorm, interleaved rotary embeddings, and scaled logits.
Source: transformers/models/cohere/modeling_cohere.py.
"""

from edgeformer.config import DecoderConfig, NormConfig, QKNormConfig
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import QK_NORM_TENSORS, TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Cohere config.json."""
    # Tensor parallelism of the training, and the limit of the tokenizer.
    fields.ignore("pretraining_tp", "model_max_length")
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_eps", 1e-5))
    qk_norm = QKNormConfig(norm=norm, over="each_head") if fields.take("use_qk_norm", False) else None
    return read_llama(
        fields,
        context_length,
        norm=norm,
        interleaved=True,
        attention={"qk_norm": qk_norm, **read_attention_bias(fields)},
        block={"residual": "parallel_one_norm"},
        logit_scale=fields.take("logit_scale"),
    )


FAMILY = Family(
    summary="Command R and Aya: parallel residual, scaled logits",
    read_config=read_config,
    tensors=TENSORS | QK_NORM_TENSORS,
    defaults={"rope_theta": 500000.0, "logit_scale": 0.0625, "tie_word_embeddings": True},
)
