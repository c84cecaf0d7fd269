"""PEGASUS: BART with pre-norm blocks and sinusoidal positions.

Source: transformers/models/pegasus/modeling_pegasus.py.
"""

from edgeformer.config import Seq2SeqConfig, SinusoidalPositions
from edgeformer.families._bart import IGNORED, LOGITS_BIAS, STORED_POSITIONS, TENSORS, read_bart
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a PEGASUS config.json."""
    return read_bart(fields, context_length, norm_placement="pre", positions=SinusoidalPositions(interleaved=False))


FAMILY = Family(
    summary="PEGASUS",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"activation_function": "gelu", "scale_embedding": False},
    optional_prefix="model.",
    ignored_tensors=IGNORED,
    stored_positions=STORED_POSITIONS,
    zero_if_absent=(LOGITS_BIAS,),
)
