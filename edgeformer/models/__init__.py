"""Whole models built from a `ModelConfig`."""

from edgeformer.models.decoder import Decoder, decoder_constants

__all__ = ["Decoder", "decoder_constants"]
