"""What a model is: a tree of small frozen dataclasses, independent of torch and of any checkpoint format.

Behaviour is carried by fields, never by a model's name. A model is a list of `BlockConfig`, so that layers may differ.
What every model must decide (sizes, epsilons, scales, biases) is required; a field with a default is a feature, and its
default is to be without it. Combinations that mean nothing are refused when they are made.
"""

from edgeformer.config.block import (
    Activation,
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    FeedForwardConfig,
    NormConfig,
    QKNormConfig,
    QueryTemperature,
    RandomBlocks,
)
from edgeformer.config.model import (
    AudioStem,
    ClassificationHead,
    DecoderConfig,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    PoolingHead,
    Seq2SeqConfig,
    StackConfig,
)
from edgeformer.config.position import (
    AlibiConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RelativePosition,
    RotaryConfig,
    RotaryScaling,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)

__all__ = [
    "Activation",
    "AlibiConfig",
    "AttentionConfig",
    "AudioStem",
    "BlockConfig",
    "ClassificationHead",
    "CrossAttentionConfig",
    "DecoderConfig",
    "EncoderConfig",
    "FeedForwardConfig",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MaskedLMHead",
    "ModelConfig",
    "NormConfig",
    "PoolingHead",
    "ProportionalScaling",
    "QKNormConfig",
    "QueryTemperature",
    "RandomBlocks",
    "RelativePosition",
    "RotaryConfig",
    "RotaryScaling",
    "Seq2SeqConfig",
    "ShawConfig",
    "SinusoidalPositions",
    "StackConfig",
    "T5BiasConfig",
    "TransformerXLConfig",
    "YarnScaling",
]
