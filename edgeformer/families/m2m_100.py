"""M2M100 and NLLB.

Source: transformers/models/m2m_100/modeling_m2m_100.py.
"""

from edgeformer.config import Seq2SeqConfig, SinusoidalPositions
from edgeformer.families._bart import IGNORED, TENSORS, read_bart
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read an M2M100 config.json."""
    # Positions start at pad_token_id + 1. transformers does not count padding; here padding is at the end.
    offset = fields.take("pad_token_id") + 1
    return read_bart(
        fields,
        context_length,
        norm_placement="pre",
        positions=SinusoidalPositions(interleaved=False, to_base=True, offset=offset),
        logits_bias=False,
    )


FAMILY = Family(
    summary="M2M100, NLLB; without mixtures of experts",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"activation_function": "relu", "pad_token_id": 1, "scale_embedding": True},
    optional_prefix="model.",
    ignored_tensors=IGNORED,
    computed_tensors={r"model\.(encoder|decoder)\.embed_positions\.weights": "sinusoids"},
)
