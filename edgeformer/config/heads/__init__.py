"""Configs of the heads of encoders: what is computed from the last states, and what it says of a text.

Another head is a file here with a class of `Head`, its module in `edgeformer.models.heads`, and an entry in the unions
and tables that list them.
"""

from edgeformer.config.heads.classification import ClassificationHead, ProblemType
from edgeformer.config.heads.head import Gives, Head, HeadOutput, Sizes
from edgeformer.config.heads.masked_lm import MaskedLMHead
from edgeformer.config.heads.pooling import Pooling, PoolingHead, PoolingLayer
from edgeformer.config.heads.question_answering import QuestionAnsweringHead

EncoderHead = MaskedLMHead | ClassificationHead | QuestionAnsweringHead | PoolingHead

__all__ = [
    "ClassificationHead", "EncoderHead", "Gives", "Head", "HeadOutput", "MaskedLMHead", "Pooling", "PoolingHead",
    "PoolingLayer", "ProblemType", "QuestionAnsweringHead", "Sizes",
]  # fmt: skip
