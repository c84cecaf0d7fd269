"""Configs of the heads of encoders: what is computed from the last states, and what it says of a text.

Another head is a file here with a class of `Head`, its module in `edgeformer.models.heads`, and an entry in the unions
and tables that list them.
"""

from edgeformer.config.heads.classification import ClassificationHead, ProblemType
from edgeformer.config.heads.combined import CombinedHead
from edgeformer.config.heads.head import Gives, Head, HeadOutput, Sizes
from edgeformer.config.heads.masked_lm import MaskedLMHead
from edgeformer.config.heads.pooling import Pooling, PoolingHead, PoolingLayer
from edgeformer.config.heads.question_answering import QuestionAnsweringHead
from edgeformer.config.heads.splade import SpladeHead
from edgeformer.config.heads.text_vector import PooledPlace, TextVectorHead
from edgeformer.config.heads.token_vectors import Expansion, Reading, TokenVectorsHead
from edgeformer.config.heads.token_weights import TokenWeightsHead

EncoderHead = (
    MaskedLMHead
    | ClassificationHead
    | QuestionAnsweringHead
    | PoolingHead
    | TokenVectorsHead
    | TokenWeightsHead
    | SpladeHead
    | CombinedHead
    | TextVectorHead
)

__all__ = [
    "ClassificationHead", "CombinedHead", "EncoderHead", "Expansion", "Gives", "Head", "HeadOutput", "MaskedLMHead",
    "PooledPlace", "Pooling", "PoolingHead", "PoolingLayer", "ProblemType", "QuestionAnsweringHead", "Reading", "Sizes",
    "SpladeHead", "TextVectorHead", "TokenVectorsHead", "TokenWeightsHead",
]  # fmt: skip
