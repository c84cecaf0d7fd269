"""DeBERTa, versions 2 and 3 (`deberta-v2`): logarithmic distances, one table of relations for all projections.

Source: transformers/models/deberta_v2/modeling_deberta_v2.py.
"""

from edgeformer.config import EncoderConfig
from edgeformer.families._deberta import ATTENTION, IGNORED, TENSORS, read_deberta
from edgeformer.families._family import Family, Fields
from edgeformer.families.bert import COUNTED, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a DeBERTa-v2 config.json."""
    fields.ignore("conv_act", "conv_groups")
    # The convolution of v2-xlarge and v2-xxlarge.
    fields.choice("conv_kernel_size", {0: None}, 0)
    head_dim = fields.take("hidden_size") // fields.take("num_attention_heads")
    fields.choice("attention_head_size", {head_dim: None}, head_dim)
    relations = {
        "span": max(fields.take("position_buckets", -1), 0),
        "shared_projections": fields.take("share_att_key", False),
        "norm": fields.choice("norm_rel_ebd", {"none": None, "layer_norm": read_norm(fields)}, "none"),
    }
    return read_deberta(fields, context_length, "DebertaV2", relations)


FAMILY = Family(
    summary="DeBERTa v2 without convolution, DeBERTa v3; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **TENSORS,
        **{f"blocks.*.attention.{part}": f"{ATTENTION}.{part}_proj" for part in ("query", "key", "value")},
        "blocks.*.attention.relation_key": f"{ATTENTION}.pos_key_proj",
        "blocks.*.attention.relation_query": f"{ATTENTION}.pos_query_proj",
    },
    defaults={"layer_norm_eps": 1e-7, "type_vocab_size": 0},
    optional_prefix="deberta.",
    computed_tensors=COUNTED,
    ignored_tensors=IGNORED,
)
