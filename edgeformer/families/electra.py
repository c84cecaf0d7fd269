"""ELECTRA: BERT whose embeddings may be narrower than its states, and are projected then.

Source: transformers/models/electra/modeling_electra.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families._encoder import layer_norm, read_head, usual_heads
from edgeformer.families._family import Family, Fields
from edgeformer.families.bert import BERT_IGNORED, COUNTED, body_tensors, read_bert, read_norm


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an ELECTRA config.json."""
    # Options of the head for multiple choice.
    fields.ignore("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")
    heads = usual_heads(fields, read_norm(fields), lambda: "gelu", "gelu")
    config = read_bert(fields, context_length, read_head(fields, "Electra", heads))
    width = fields.take("embedding_size")
    return replace(config, embedding_size=None if width == config.hidden_size else width)


FAMILY = Family(
    summary="ELECTRA; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **body_tensors("electra"),
        "embedding_projection": "electra.embeddings_project",
        "masked_lm.dense": "generator_predictions.dense",
        **layer_norm("masked_lm.norm", "generator_predictions.LayerNorm"),
        "masked_lm.output": "generator_lm_head",
        "classifier.dense": "classifier.dense",
        "classifier.output": "classifier.out_proj|classifier",
        "answer_span": "qa_outputs",
    },
    defaults={"embedding_size": 128},
    optional_prefix="electra.",
    computed_tensors=COUNTED,
    # Heads of other tasks; discriminators are published with that of their training.
    ignored_tensors=(
        *BERT_IGNORED,
        r"discriminator_predictions\.(dense|dense_prediction)\.(weight|bias)",
        r"generator_predictions\.(dense|LayerNorm)\.(weight|bias|gamma|beta)",
        r"(generator_lm_head|classifier(\.dense|\.out_proj)?|qa_outputs)\.(weight|bias)",
    ),
)
