"""Jina Embeddings v3, without adapters: XLM-RoBERTa with rotary embeddings.

Source: transformers/models/jina_embeddings_v3/modeling_jina_embeddings_v3.py. Tensors have the names of the hub's
checkpoints, which transformers renames when it loads them.
"""

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary_bert import read_rotary_bert, rotary_body_tensors
from edgeformer.families.bert import COUNTED, read_norm
from edgeformer.families.roberta import HEAD_TENSORS, ROBERTA_IGNORED


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a Jina Embeddings v3 config.json."""
    heads = usual_heads(fields, read_norm(fields), lambda: "gelu", "tanh")
    return read_rotary_bert(fields, context_length, read_head(fields, "JinaEmbeddingsV3", heads), 20000.0)


FAMILY = Family(
    summary="Jina Embeddings v3 without adapters; heads of RoBERTa",
    read_config=read_config,
    tensors={
        **rotary_body_tensors("roberta", "mixer"),
        "blocks.*.feed_forward.up": "roberta.encoder.layers.*.mlp.fc1",
        "blocks.*.feed_forward.down": "roberta.encoder.layers.*.mlp.fc2",
        **HEAD_TENSORS,
    },
    defaults={"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    optional_prefix="roberta.",
    computed_tensors=COUNTED,
    ignored_tensors=ROBERTA_IGNORED,
)
