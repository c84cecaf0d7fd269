"""Marian: the translation models of OPUS-MT.

Source: transformers/models/marian/modeling_marian.py.
"""

from edgeformer.config import Seq2SeqConfig, SinusoidalPositions
from edgeformer.families._bart import IGNORED, LOGITS_BIAS, STORED_POSITIONS, TENSORS, read_bart
from edgeformer.families._family import Family, Fields


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a Marian config.json."""
    shared, vocab_size = fields.take("share_encoder_decoder_embeddings", True), fields.take("vocab_size")
    if shared:
        fields.choice("decoder_vocab_size", {vocab_size: None}, vocab_size)
    return read_bart(
        fields,
        context_length,
        norm_placement="post",
        positions=SinusoidalPositions(interleaved=False),
        one_vocabulary=shared,
    )


FAMILY = Family(
    summary="Marian (OPUS-MT); one vocabulary or two",
    read_config=read_config,
    tensors=TENSORS,
    defaults={"activation_function": "gelu", "scale_embedding": False},
    optional_prefix="model.",
    ignored_tensors=IGNORED,
    stored_positions=STORED_POSITIONS,
    zero_if_absent=(LOGITS_BIAS,),
)
