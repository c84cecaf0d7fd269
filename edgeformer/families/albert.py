"""ALBERT: BERT whose blocks share one set of parameters, and whose embeddings are projected.

Source: transformers/models/albert/modeling_albert.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import HEAD_ACTIVATIONS, layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families.bert import COUNTED, read_bert, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an ALBERT config.json."""
    # Options of the first release that transformers does not have.
    fields.ignore("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    fields.choice("inner_group_num", {1: None}, 1)
    fields.choice("num_hidden_groups", {1: None}, 1)
    heads = usual_heads(fields, read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS), "tanh")
    config = read_bert(fields, context_length, read_head(fields, "Albert", heads))
    return replace(config, embedding_size=fields.take("embedding_size"), shared_blocks=True)


EMBEDDINGS = "albert.embeddings"
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"  # of all blocks

FAMILY = Family(
    summary="ALBERT; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        "embedding": f"{EMBEDDINGS}.word_embeddings",
        "position_embedding": f"{EMBEDDINGS}.position_embeddings",
        "token_type_embedding": f"{EMBEDDINGS}.token_type_embeddings",
        **layer_norm("embedding_norm", f"{EMBEDDINGS}.LayerNorm"),
        "embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
        **{f"blocks.*.attention.{part}": f"{LAYER}.attention.{part}" for part in ("query", "key", "value")},
        "blocks.*.attention.output": f"{LAYER}.attention.dense",
        **layer_norm("blocks.*.attention_norm", f"{LAYER}.attention.LayerNorm"),
        "blocks.*.feed_forward.up": f"{LAYER}.ffn",
        "blocks.*.feed_forward.down": f"{LAYER}.ffn_output",
        **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.full_layer_layer_norm"),
        "masked_lm.dense": "predictions.dense",
        **layer_norm("masked_lm.norm", "predictions.LayerNorm"),
        "masked_lm.output.weight": "predictions.decoder.weight",
        "masked_lm.output.bias": "predictions.decoder.bias|predictions.bias",
        "classifier.dense": "albert.pooler",
        "classifier.output": "classifier",
        "answer_span": "qa_outputs",
    },
    # Defaults of transformers' config class that are not those of BERT.
    defaults={"embedding_size": 128, "hidden_act": "gelu_new"},
    optional_prefix="albert.",
    computed_tensors=COUNTED,
    # The pooler, and heads of other tasks.
    ignored_tensors=(
        r"albert\.pooler\.(weight|bias)",
        r"predictions\.(bias|decoder\.(weight|bias)|(dense|LayerNorm)\.(weight|bias|gamma|beta))",
        r"(sop_classifier\.classifier|classifier|qa_outputs)\.(weight|bias)",
    ),
)
