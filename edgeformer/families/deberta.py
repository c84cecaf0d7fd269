"""DeBERTa, version 1.

Source: transformers/models/deberta/modeling_deberta.py.
"""

from edgeformer.config import EncoderConfig
from edgeformer.families._deberta import ATTENTION, IGNORED, TENSORS, read_deberta
from edgeformer.families._family import Family, Fields, packed_qkv
from edgeformer.families.bert import COUNTED


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a DeBERTa config.json."""
    # Options of version 2, which version 1 does not have.
    fields.ignore("norm_rel_ebd", "position_buckets", "share_att_key")
    fields.choice("talking_head", {False: None}, False)
    return read_deberta(fields, context_length, "Deberta", {"key_bias": False}, key_bias=False)


FAMILY = Family(
    summary="DeBERTa; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **TENSORS,
        **packed_qkv(f"{ATTENTION}.in_proj", layout="groups"),
        "blocks.*.attention.query.bias": f"{ATTENTION}.q_bias",
        "blocks.*.attention.value.bias": f"{ATTENTION}.v_bias",
        "blocks.*.attention.relation_key": f"{ATTENTION}.pos_proj",
        "blocks.*.attention.relation_query": f"{ATTENTION}.pos_q_proj",
    },
    defaults={"layer_norm_eps": 1e-7, "type_vocab_size": 0},
    optional_prefix="deberta.",
    computed_tensors=COUNTED,
    ignored_tensors=IGNORED,
)
