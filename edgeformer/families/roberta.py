"""RoBERTa: BERT with one token type, whose positions start at pad_token_id + 1.

Source: transformers/models/roberta/modeling_roberta.py.
"""

from typing import Literal

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families.bert import BERT_IGNORED, COUNTED, body_tensors, read_bert, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a RoBERTa config.json."""
    return read_roberta(fields, context_length, "Roberta")


def read_roberta(
    fields: Fields,
    context_length: int | None,
    model: str,
    *,
    norm_placement: Literal["pre", "post"] = "post",
    embedding_norm: bool = True,
) -> EncoderConfig:
    """Read the fields that RoBERTa and its variants share.

    model: prefix of transformers' class names. norm_placement, embedding_norm: as in `read_bert`.
    """
    heads = usual_heads(fields, read_norm(fields), lambda: "gelu", "tanh")
    # Rows up to pad_token_id are for padding, or unused. transformers also treats padding tokens inside a text so and
    # does not count them; here they are tokens like all others.
    first = fields.take("pad_token_id", 1) + 1
    head = read_head(fields, model, heads)
    return read_bert(fields, context_length, head, first, norm_placement=norm_placement, embedding_norm=embedding_norm)


HEAD_TENSORS = {
    "masked_lm.dense": "lm_head.dense",
    **layer_norm("masked_lm.norm", "lm_head.layer_norm"),
    "masked_lm.output.weight": "lm_head.decoder.weight",
    "masked_lm.output.bias": "lm_head.decoder.bias|lm_head.bias",
    "classifier.dense": "classifier.dense",
    "classifier.output": "classifier.out_proj|classifier",
    "answer_span": "qa_outputs",
}

# The pooler, and heads of other tasks, which a checkpoint may have in addition.
ROBERTA_IGNORED = (
    *BERT_IGNORED,
    r"lm_head\.((decoder\.)?bias|decoder\.weight|(dense|layer_norm)\.(weight|bias))",
    r"(classifier(\.dense|\.out_proj)?|qa_outputs)\.(weight|bias)",
)

FAMILY = Family(
    summary="RoBERTa; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={**body_tensors("roberta"), **HEAD_TENSORS},
    optional_prefix="roberta.",
    computed_tensors=COUNTED,
    ignored_tensors=ROBERTA_IGNORED,
)
