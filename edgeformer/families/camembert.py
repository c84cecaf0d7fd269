"""CamemBERT: French RoBERTa, with the tensor names of RoBERTa.

Source: transformers/models/camembert/modeling_camembert.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import roberta
from edgeformer.families._family import Fields


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a CamemBERT config.json."""
    return roberta.read_roberta(fields, context_length, "Camembert")


FAMILY = replace(roberta.FAMILY, summary="CamemBERT; heads of RoBERTa", read_config=read_config)
