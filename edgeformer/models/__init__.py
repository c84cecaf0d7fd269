"""Modules of whole models, built from a `ModelConfig`."""

import torch
from torch import Tensor, nn

from edgeformer.config import DecoderConfig, EncoderConfig, ModelConfig, Seq2SeqConfig
from edgeformer.documents.schema import check
from edgeformer.models.decoder import Decoder
from edgeformer.models.encoder import Encoder
from edgeformer.models.seq2seq import Seq2Seq
from edgeformer.models.stack import stack_constants

__all__ = ["Decoder", "Encoder", "Seq2Seq", "build_model", "model_constants"]


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the module of a config; its parameters are uninitialized. Raises ConfigError for a lone cross-attention
    decoder.
    """
    match config:
        case DecoderConfig():
            alone = config.cross_geometry is None
            check(alone, config, "blocks", "without cross-attention in a decoder that is no part of a Seq2SeqConfig")
            return Decoder(config, dtype)
        case EncoderConfig():
            return Encoder(config, dtype)
        case Seq2SeqConfig():
            return Seq2Seq(config, dtype)


def model_constants(config: ModelConfig) -> dict[str, Tensor]:
    """Compute the buffers of a model, which no checkpoint stores: name → float64 or int64 tensor."""
    if not isinstance(config, Seq2SeqConfig):
        return stack_constants(config)
    halves = {"encoder": config.encoder, "decoder": config.decoder}
    return {f"{half}.{name}": value for half, part in halves.items() for name, value in stack_constants(part).items()}
