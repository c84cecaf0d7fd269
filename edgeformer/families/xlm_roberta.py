"""XLM-RoBERTa (`xlm-roberta`): multilingual RoBERTa, with the tensor names of RoBERTa.

Source: transformers/models/xlm_roberta/modeling_xlm_roberta.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import roberta
from edgeformer.families._family import Fields


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an XLM-RoBERTa config.json."""
    return roberta.read_roberta(fields, context_length, "XLMRoberta")


FAMILY = replace(
    roberta.FAMILY,
    summary="XLM-RoBERTa, multilingual E5, BGE-M3; heads of RoBERTa",
    read_config=read_config,
)
