"""The modules of towers that are models by themselves, or halves of dual encoders."""

import torch

from edgeformer.config import PictureTower
from edgeformer.models.pictures.naflex import NaflexVisionEncoder
from edgeformer.models.pictures.vision import VisionEncoder


def build_tower(config: PictureTower, dtype: torch.dtype = torch.float32) -> VisionEncoder | NaflexVisionEncoder:
    """Return the module of a tower; its parameters are uninitialized."""
    return VisionEncoder(config, dtype) if config.kind == "vision" else NaflexVisionEncoder(config, dtype)
