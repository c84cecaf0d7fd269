"""Megatron-BERT (`megatron-bert`): BERT with pre-norm blocks; embeddings are not normalized.

Source: transformers/models/megatron_bert/modeling_megatron_bert.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import bert
from edgeformer.families._encoder import HEAD_ACTIVATIONS, layer_norm, read_head, usual_heads
from edgeformer.families._family import Fields


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a Megatron-BERT config.json."""
    heads = usual_heads(
        fields, bert.read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS, "gelu"), "tanh"
    )
    head = read_head(fields, "MegatronBert", heads)
    return bert.read_bert(fields, context_length, head, norm_placement="pre", embedding_norm=False)


FAMILY = replace(
    bert.FAMILY,
    summary="Megatron-BERT; heads of BERT",
    read_config=read_config,
    tensors={
        **bert.FAMILY.tensors,
        **layer_norm("blocks.*.attention_norm", "bert.encoder.layer.*.attention.ln"),
        **layer_norm("blocks.*.feed_forward_norm", "bert.encoder.layer.*.ln"),
        **layer_norm("final_norm", "bert.encoder.ln"),
    },
)
