"""MPNet: RoBERTa with T5's relative position bias in addition to its positions; no segments.

Source: transformers/models/mpnet/modeling_mpnet.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig, T5BiasConfig
from edgeformer.families._encoder import layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import vary_attention
from edgeformer.families.bert import COUNTED, read_bert, read_norm
from edgeformer.families.roberta import HEAD_TENSORS, ROBERTA_IGNORED

FIRST_POSITION = 2
"""Row of position 0 in the table of positions, whatever pad_token_id is."""


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an MPNet config.json."""
    heads = usual_heads(fields, read_norm(fields), lambda: "gelu", "tanh")
    config = read_bert(fields, context_length, read_head(fields, "MPNet", heads), FIRST_POSITION)
    # transformers computes with 32 buckets up to a distance of 128, whatever the size of the table.
    buckets = fields.choice("relative_attention_num_buckets", {32: 32}, 32)
    bias = T5BiasConfig(num_buckets=buckets, max_distance=128, bidirectional=True)
    config = replace(config, token_types=0)
    return vary_attention(config, [{"relative": bias}] * len(config.blocks))


LAYER = "mpnet.encoder.layer.*"

FAMILY = Family(
    summary="MPNet (all-mpnet-base); masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        "embedding": "mpnet.embeddings.word_embeddings",
        "position_embedding": "mpnet.embeddings.position_embeddings",
        **layer_norm("embedding_norm", "mpnet.embeddings.LayerNorm"),
        "relative.*": "mpnet.encoder.relative_attention_bias",
        **{f"blocks.*.attention.{part}": f"{LAYER}.attention.attn.{part[0]}" for part in ("query", "key", "value")},
        "blocks.*.attention.output": f"{LAYER}.attention.attn.o",
        **layer_norm("blocks.*.attention_norm", f"{LAYER}.attention.LayerNorm"),
        "blocks.*.feed_forward.up": f"{LAYER}.intermediate.dense",
        "blocks.*.feed_forward.down": f"{LAYER}.output.dense",
        **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.output.LayerNorm"),
        **HEAD_TENSORS,
    },
    optional_prefix="mpnet.",
    computed_tensors=COUNTED,
    ignored_tensors=ROBERTA_IGNORED,
)
