"""Modules of whole models, built from a `ModelConfig`."""

import torch
from torch import Tensor, nn

from edgeformer.config import ModelConfig
from edgeformer.models.decoder import Decoder
from edgeformer.models.dual_encoder import DualEncoder
from edgeformer.models.encoder import Encoder
from edgeformer.models.kinds import KINDS
from edgeformer.models.pictures.vision import VisionEncoder, picture_constants
from edgeformer.models.seq2seq import Seq2Seq
from edgeformer.models.stack import stack_constants

__all__ = ["Decoder", "DualEncoder", "Encoder", "Seq2Seq", "VisionEncoder", "build_model", "model_constants"]


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the module of a config; its parameters are uninitialized. Raises ConfigError for a lone cross-attention
    decoder.
    """
    return KINDS[config.task].build(config, dtype)


def model_constants(config: ModelConfig) -> dict[str, Tensor]:
    """Compute the buffers of a model, which no checkpoint stores: name → float64 or int64 tensor."""
    return {
        f"{half}.{name}" if half else name: value
        for half, stack in config.stacks.items()
        for name, value in (stack_constants(stack) | picture_constants(stack)).items()
    }
