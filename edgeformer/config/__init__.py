"""Model configs: trees of small frozen dataclasses that are independent of torch and of any checkpoint format.

Fields describe behaviour; nothing depends on a model's name. A model has one `BlockConfig` per layer, so that layers
may differ. Sizes, epsilons, scales and biases are required. A field with a default is a feature, and the default
means that the model does not have it. Combinations without a meaning raise ConfigError when they are made.

Shapes below use B batch, S new tokens, T total tokens, H heads, K kv heads, D head_dim, E hidden_size, V vocab_size.
"""

from edgeformer.config.altup import AltUpConfig
from edgeformer.config.block import (
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    QKNormConfig,
    QueryTemperature,
    RandomBlocks,
)
from edgeformer.config.bottleneck import BottleneckConfig
from edgeformer.config.experts import ExpertsConfig, RouterConfig
from edgeformer.config.feed_forward import Activation, FeedForwardConfig
from edgeformer.config.heads import (
    ClassificationHead,
    MaskedLMHead,
    Pooling,
    PoolingHead,
    PoolingLayer,
    QuestionAnsweringHead,
    TextVectorHead,
)
from edgeformer.config.latent import LatentConfig
from edgeformer.config.layer_input import LayerInputConfig, PerLayerEmbedding, PictureLayerInput
from edgeformer.config.models import (
    NO_CACHE,
    AudioStem,
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    Form,
    GridVisionConfig,
    ModelConfig,
    PictureTextConfig,
    Seq2SeqConfig,
    SoundTextConfig,
    SoundTowerConfig,
    StackConfig,
    Task,
    TokenDropout,
    TokenProjection,
    VisionConfig,
)
from edgeformer.config.norm import NormConfig
from edgeformer.config.pictures import (
    AttentionPooler,
    Bidirectional,
    Grid,
    PatchStem,
    PatchVectors,
    PatchWindows,
    PictureClassifier,
    PicturePooling,
    TokenPooler,
)
from edgeformer.config.position import (
    AlibiConfig,
    DisentangledConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongFactors,
    LongRopeScaling,
    ProportionalScaling,
    RelativePosition,
    RotaryAxes,
    RotaryConfig,
    RotaryScaling,
    ShawConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)
from edgeformer.config.projectors import Projector
from edgeformer.config.recurrent import DeltaNetConfig, RecurrentConfig, ShortConvConfig, StateSpaceConfig

__all__ = [
    "NO_CACHE",
    "Activation",
    "AlibiConfig",
    "AltUpConfig",
    "AttentionConfig",
    "AttentionPooler",
    "AudioStem",
    "Bidirectional",
    "BlockConfig",
    "BottleneckConfig",
    "ClassificationHead",
    "CrossAttentionConfig",
    "DecoderConfig",
    "DeltaNetConfig",
    "DisentangledConfig",
    "DualEncoderConfig",
    "EncoderConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "Form",
    "Grid",
    "GridVisionConfig",
    "LatentConfig",
    "LayerInputConfig",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LongFactors",
    "LongRopeScaling",
    "MaskedLMHead",
    "ModelConfig",
    "NormConfig",
    "PatchStem",
    "PatchVectors",
    "PatchWindows",
    "PerLayerEmbedding",
    "PictureClassifier",
    "PictureLayerInput",
    "PicturePooling",
    "PictureTextConfig",
    "Pooling",
    "PoolingHead",
    "PoolingLayer",
    "Projector",
    "ProportionalScaling",
    "QKNormConfig",
    "QueryTemperature",
    "QuestionAnsweringHead",
    "RandomBlocks",
    "RecurrentConfig",
    "RelativePosition",
    "RotaryAxes",
    "RotaryConfig",
    "RotaryScaling",
    "RouterConfig",
    "Seq2SeqConfig",
    "ShawConfig",
    "ShortConvConfig",
    "SinusoidalPositions",
    "SoundTextConfig",
    "SoundTowerConfig",
    "StackConfig",
    "StateSpaceConfig",
    "T5BiasConfig",
    "Task",
    "TextVectorHead",
    "TokenDropout",
    "TokenPooler",
    "TokenProjection",
    "TransformerXLConfig",
    "VisionConfig",
    "YarnScaling",
]
