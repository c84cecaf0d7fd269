"""data2vec for text (`data2vec-text`): RoBERTa, trained to predict the states of a teacher.

Source: transformers/models/data2vec/modeling_data2vec_text.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import roberta
from edgeformer.families._family import Fields
from edgeformer.families.bert import body_tensors


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a data2vec-text config.json."""
    return roberta.read_roberta(fields, context_length, "Data2VecText")


FAMILY = replace(
    roberta.FAMILY,
    summary="data2vec for text; heads of RoBERTa",
    read_config=read_config,
    tensors={**body_tensors("data2vec_text"), **roberta.HEAD_TENSORS},
    optional_prefix="data2vec_text.",
)
