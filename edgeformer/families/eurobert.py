"""EuroBERT: Llama with bidirectional attention.

Source: transformers/models/eurobert/modeling_eurobert.py.
"""

from edgeformer.config import ClassificationHead, EncoderConfig, MaskedLMHead
from edgeformer.families._encoder import read_head, read_labels
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import bidirectional
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a EuroBERT config.json."""
    fields.ignore("classifier_pooling", "clf_pooling", "mask", "mask_token_id", "pretraining_tp")
    bias = fields.take("mlp_bias", False)
    body = read_llama(
        fields,
        context_length,
        attention=read_attention_bias(fields),
        feed_forward={"bias": bias},
    )
    head = read_head(
        fields,
        "EuroBert",
        {
            "ForMaskedLM": lambda: MaskedLMHead(activation=None, norm=None, bias=bias, tied=body.tied_head),
            "ForSequenceClassification": lambda: ClassificationHead(
                labels=read_labels(fields),
                # "late", the default, classifies every token and takes the mean of the logits.
                pooling=fields.choice("classifier_pooling", {"bos": "first", "mean": "mean"}, "late"),
                dense="gelu",
            ),
            "ForTokenClassification": lambda: ClassificationHead(labels=read_labels(fields), pooling=None),
        },
    )
    return bidirectional(body, head=head)


FAMILY = Family(
    summary="EuroBERT; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        **TENSORS,
        "masked_lm.output": "lm_head",
        "classifier.dense": "dense",
        "classifier.output": "classifier",
    },
    defaults={"rms_norm_eps": 1e-5},
    optional_prefix="model.",
    # Heads of other tasks.
    ignored_tensors=(r"(lm_head|dense|classifier|qa_outputs)\.(weight|bias)",),
)
