"""Whole models built from a `ModelConfig`."""

from edgeformer.models.decoder import Decoder

__all__ = ["Decoder"]
