"""XLM-RoBERTa XL and XXL (`xlm-roberta-xl`): XLM-RoBERTa with pre-norm blocks; embeddings are not normalized.

Source: transformers/models/xlm_roberta_xl/modeling_xlm_roberta_xl.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import roberta
from edgeformer.families._encoder import layer_norm
from edgeformer.families._family import Fields
from edgeformer.families.bert import body_tensors

LAYER = "roberta.encoder.layer.*"


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an XLM-RoBERTa XL config.json."""
    return roberta.read_roberta(fields, context_length, "XLMRobertaXL", norm_placement="pre", embedding_norm=False)


FAMILY = replace(
    roberta.FAMILY,
    summary="XLM-RoBERTa XL and XXL; heads of RoBERTa",
    read_config=read_config,
    tensors={
        **body_tensors("roberta"),
        **layer_norm("blocks.*.attention_norm", f"{LAYER}.attention.self_attn_layer_norm"),
        **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.LayerNorm"),
        **layer_norm("final_norm", "roberta.encoder.LayerNorm"),
        **roberta.HEAD_TENSORS,
    },
    # Defaults of transformers' config class that are not those of RoBERTa.
    defaults={"layer_norm_eps": 1e-5, "type_vocab_size": 1},
)
