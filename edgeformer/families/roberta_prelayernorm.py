"""RoBERTa with pre-norm blocks (`roberta-prelayernorm`): models of fairseq.

Source: transformers/models/roberta_prelayernorm/modeling_roberta_prelayernorm.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import roberta
from edgeformer.families._encoder import layer_norm
from edgeformer.families._family import Fields
from edgeformer.families.bert import body_tensors

MODEL = "roberta_prelayernorm"


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read the config.json of a pre-norm RoBERTa."""
    return roberta.read_roberta(fields, context_length, "RobertaPreLayerNorm", norm_placement="pre")


FAMILY = replace(
    roberta.FAMILY,
    summary="RoBERTa with pre-norm blocks; heads of RoBERTa",
    read_config=read_config,
    tensors={
        **body_tensors(MODEL),
        **layer_norm("blocks.*.attention_norm", f"{MODEL}.encoder.layer.*.attention.LayerNorm"),
        **layer_norm("blocks.*.feed_forward_norm", f"{MODEL}.encoder.layer.*.intermediate.LayerNorm"),
        **layer_norm("final_norm", f"{MODEL}.LayerNorm"),
        **roberta.HEAD_TENSORS,
    },
    optional_prefix=f"{MODEL}.",
)
