"""mBART and mBART-50: BART with pre-norm blocks.

Source: transformers/models/mbart/modeling_mbart.py.
"""

from edgeformer.config import LearnedPositions, Seq2SeqConfig
from edgeformer.families._bart import IGNORED, LOGITS_BIAS, TENSORS, read_bart
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read an mBART config.json."""
    return read_bart(
        fields,
        context_length,
        norm_placement="pre",
        positions=LearnedPositions(rows=fields.take("max_position_embeddings") + 2, offset=2),
        embedding_norm=True,
    )


FAMILY = Family(
    summary="mBART, mBART-50",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"activation_function": "gelu", "scale_embedding": False},
    optional_prefix="model.",
    ignored_tensors=IGNORED,
    zero_if_absent=(LOGITS_BIAS,),
)
