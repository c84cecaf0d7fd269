"""BART, DistilBART.

Source: transformers/models/bart/modeling_bart.py.
"""

from edgeformer.config import LearnedPositions, Seq2SeqConfig
from edgeformer.families._bart import IGNORED, LOGITS_BIAS, TENSORS, read_bart
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a BART config.json."""
    return read_bart(
        fields,
        context_length,
        norm_placement="post",
        positions=LearnedPositions(rows=fields.take("max_position_embeddings") + 2, offset=2),
        embedding_norm=True,
    )


FAMILY = Family(
    summary="BART, DistilBART",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"activation_function": "gelu", "scale_embedding": False},
    optional_prefix="model.",
    ignored_tensors=IGNORED,
    zero_if_absent=(LOGITS_BIAS,),
)
