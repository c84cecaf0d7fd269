"""GTE v1.5 and multilingual, Snowflake Arctic Embed v2: BERT with rotary embeddings and gated feed-forwards.

Source: transformers/models/gte/modeling_gte.py. Tensors have the names of the hub's checkpoints, which transformers
renames when it loads them; some of those begin with `new.`.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields, Packed, packed_qkv
from edgeformer.families._layers import vary_feed_forward
from edgeformer.families._rotary_bert import read_rotary_bert
from edgeformer.families.bert import COUNTED, HEADS_IGNORED, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a GTE config.json."""
    heads = usual_heads(fields, read_norm(fields), lambda: "gelu", "tanh")
    del heads["ForQuestionAnswering"]  # transformers has no class for it
    config = read_rotary_bert(fields, context_length, read_head(fields, "Gte", heads), 160000.0)
    return vary_feed_forward(config, gated=True, bias=False, output_bias=True)


LAYER = "gte.encoder.layer.*"
TENSORS: dict[str, str | Packed] = {
    "embedding": "gte.embeddings.word_embeddings",
    "token_type_embedding": "gte.embeddings.token_type_embeddings",
    **layer_norm("embedding_norm", "gte.embeddings.LayerNorm"),
    **packed_qkv(f"{LAYER}.attention.qkv_proj"),
    "blocks.*.attention.output": f"{LAYER}.attention.o_proj",
    **layer_norm("blocks.*.attention_norm", f"{LAYER}.attn_ln"),
    "blocks.*.feed_forward.up": Packed(f"{LAYER}.mlp.up_gate_proj", 0),
    "blocks.*.feed_forward.gate": Packed(f"{LAYER}.mlp.up_gate_proj", 1),
    "blocks.*.feed_forward.down": f"{LAYER}.mlp.down_proj",
    **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.mlp_ln"),
    "masked_lm.dense": "lm_head.dense",
    **layer_norm("masked_lm.norm", "lm_head.norm"),
    "masked_lm.output": "lm_head.decoder",
    "classifier.dense": "gte.pooler.dense",
    "classifier.output": "classifier",
}


def either_prefix(theirs: str | Packed) -> str | Packed:
    """Return the names of a tensor in a checkpoint with the prefix `gte.`, and in one with `new.`.

    The second has no name with the optional prefix, which is put before all of its names, as where there is none.
    """
    if isinstance(theirs, Packed):
        return replace(theirs, module=str(either_prefix(theirs.module)))
    return f"{theirs}|gte.{theirs.replace('gte.', 'new.')}"


FAMILY = Family(
    summary="GTE v1.5 and multilingual, Arctic Embed v2; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={ours: either_prefix(theirs) for ours, theirs in TENSORS.items()},
    defaults={"type_vocab_size": 1, "hidden_act": "gelu"},
    optional_prefix="gte.",
    computed_tensors=COUNTED,
    ignored_tensors=HEADS_IGNORED,
)
