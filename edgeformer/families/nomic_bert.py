"""NomicBERT: BERT with rotary embeddings and gated feed-forwards; only norms and heads have biases.

Source: transformers/models/nomic_bert/modeling_nomic_bert.py. Tensors have the names of the hub's checkpoints, which
transformers renames when it loads them.
"""

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import HEAD_ACTIVATIONS, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import vary_attention, vary_feed_forward
from edgeformer.families._rotary_bert import read_rotary_bert, rotary_body_tensors
from edgeformer.families.bert import BERT_IGNORED, COUNTED, HEADS_IGNORED, head_tensors, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a NomicBERT config.json."""
    heads = usual_heads(fields, read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS), "tanh")
    config = read_rotary_bert(fields, context_length, read_head(fields, "NomicBert", heads), 1000.0)
    config = vary_attention(config, [{"qkv_bias": False, "output_bias": False}] * len(config.blocks))
    return vary_feed_forward(config, gated=True, bias=False)


LAYER = "nomic_bert.encoder.layers.*.mlp"

FAMILY = Family(
    summary="NomicBERT (nomic-embed-text); masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **rotary_body_tensors("nomic_bert", "attn"),
        "blocks.*.feed_forward.gate": f"{LAYER}.fc12",
        "blocks.*.feed_forward.up": f"{LAYER}.fc11",
        "blocks.*.feed_forward.down": f"{LAYER}.fc2",
        **head_tensors("nomic_bert", "layer_norm"),
    },
    defaults={"hidden_act": "silu"},
    optional_prefix="nomic_bert.",
    computed_tensors=COUNTED,
    ignored_tensors=(
        *BERT_IGNORED, *HEADS_IGNORED, r"cls\.predictions\.transform\.layer_norm\.(weight|bias)",
    ),
)  # fmt: skip
