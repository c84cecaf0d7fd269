"""DeBERTa: BERT with disentangled attention; what versions 1 and 2 share.

Source: transformers/models/deberta/modeling_deberta.py, transformers/models/deberta_v2/modeling_deberta_v2.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import ClassificationHead, DisentangledConfig, EncoderConfig, MaskedLMHead, QuestionAnsweringHead
from edgeformer.errors import ConfigError
from edgeformer.families._encoder import HEAD_ACTIVATIONS, layer_norm, read_head, read_labels
from edgeformer.families._family import Fields
from edgeformer.families._layers import vary_attention
from edgeformer.families.bert import BERT_IGNORED, HEADS_IGNORED, read_bert, read_norm


def read_deberta(
    fields: Fields, context_length: int | None, model: str, relations: dict[str, Any], *, key_bias: bool = True
) -> EncoderConfig:
    """Read the fields that both versions share.

    Args:
        fields: config.json.
        context_length: positions of the export; None for all.
        model: prefix of transformers' class names.
        relations: fields of DisentangledConfig that the version decides; without a span, there is a row per distance.
        key_bias: whether keys have a bias.
    """
    # `legacy` names the masked-LM head; the tensors of the checkpoint say which one it has.
    legacy = fields.take("legacy", True)
    fields.ignore("cls_dropout", "padding_idx", "pooler_dropout")
    hidden_size = fields.take("hidden_size")
    fields.choice("embedding_size", {hidden_size: None}, hidden_size)
    fields.choice("pooler_hidden_size", {hidden_size: None}, hidden_size)
    activation, norm = fields.choice("hidden_act", HEAD_ACTIVATIONS, "gelu"), read_norm(fields)
    pooler = fields.choice("pooler_hidden_act", HEAD_ACTIVATIONS, "gelu")
    tied = fields.take("tie_word_embeddings", True) or not legacy
    head = read_head(
        fields,
        model,
        {
            "ForMaskedLM": lambda: MaskedLMHead(activation=activation, norm=norm, tied=tied),
            "ForSequenceClassification": lambda: ClassificationHead(
                labels=read_labels(fields), pooling="first", dense=pooler
            ),
            "ForTokenClassification": lambda: ClassificationHead(labels=read_labels(fields), pooling=None),
            "ForQuestionAnswering": QuestionAnsweringHead,
        },
    )
    config = read_bert(fields, context_length, head)
    if not fields.take("position_biased_input", True):
        config = replace(config, position_embedding=None)
    kinds = _position_kinds(fields)
    head_dim = config.attentions[0].head_dim
    scale, relative = (head_dim * (1 + len(kinds))) ** -0.5, _read_relations(fields, kinds, relations)
    changes = {"scale": scale, "relative": relative, "key_bias": key_bias}
    return vary_attention(config, [changes] * len(config.blocks))


def _position_kinds(fields: Fields) -> set[str]:
    """Return the parts of the scores that positions have, `c2p` and `p2c`. Raises ConfigError for others."""
    given = fields.take("pos_att_type", [])
    kinds = [kind.strip() for kind in given.lower().split("|")] if isinstance(given, str) else given
    if len(set(kinds)) < len(kinds) or not set(kinds) <= {"c2p", "p2c"}:
        raise ConfigError(f"config.json has pos_att_type = {given!r}; supported here: c2p and p2c, each once.")
    return set(kinds)


def _read_relations(fields: Fields, kinds: set[str], relations: dict[str, Any]) -> DisentangledConfig | None:
    farthest = fields.take("max_relative_positions", -1)
    farthest = farthest if farthest >= 1 else fields.take("max_position_embeddings")
    if not fields.take("relative_attention", False) or not kinds:
        return None
    buckets = {"span": farthest, "max_distance": None}
    if relations.get("span"):
        buckets = {"span": relations["span"], "max_distance": farthest}
    return DisentangledConfig(
        **{**relations, **buckets}, content_to_position="c2p" in kinds, position_to_content="p2c" in kinds
    )


LAYER = "deberta.encoder.layer.*"
ATTENTION = f"{LAYER}.attention.self"
HEADS = ("cls.predictions.transform", "lm_predictions.lm_head")
"""Masked-LM heads: transformers' own of old, and that of the DeBERTa that Microsoft trains."""

TENSORS = {
    "embedding": "deberta.embeddings.word_embeddings",
    "position_embedding": "deberta.embeddings.position_embeddings",
    "token_type_embedding": "deberta.embeddings.token_type_embeddings",
    **layer_norm("embedding_norm", "deberta.embeddings.LayerNorm"),
    "relation.*": "deberta.encoder.rel_embeddings",
    **layer_norm("relation.*.norm", "deberta.encoder.LayerNorm"),
    "blocks.*.attention.output": f"{LAYER}.attention.output.dense",
    **layer_norm("blocks.*.attention_norm", f"{LAYER}.attention.output.LayerNorm"),
    "blocks.*.feed_forward.up": f"{LAYER}.intermediate.dense",
    "blocks.*.feed_forward.down": f"{LAYER}.output.dense",
    **layer_norm("blocks.*.feed_forward_norm", f"{LAYER}.output.LayerNorm"),
    **{f"masked_lm.{ours}": "|".join(f"{head}.{theirs}" for head in HEADS) for ours, theirs in (
        ("dense", "dense"), ("norm", "LayerNorm"),
    )},
    "masked_lm.output.weight": "cls.predictions.decoder.weight",
    "masked_lm.output.bias": "cls.predictions.decoder.bias|cls.predictions.bias|lm_predictions.lm_head.bias",
    "classifier.dense": "pooler.dense",
    "classifier.output": "classifier",
    "answer_span": "qa_outputs",
}  # fmt: skip

IGNORED = (
    *BERT_IGNORED,
    *HEADS_IGNORED,
    r"deberta\.embeddings\.position_embeddings\.weight",
    # Heads of other tasks, and that of the generator of version 3.
    r"(lm_predictions|mask_predictions)\..*",
    r"pooler\.dense\.(weight|bias)",
)
