"""VipLLaVA: LLaVA that reads several layers of CLIP, with a norm before the projector.

Source: transformers/models/vipllava/modeling_vipllava.py.
"""

from dataclasses import replace

from edgeformer.config import NormConfig
from edgeformer.config.projectors import MlpProjector
from edgeformer.families._family import Fields
from edgeformer.families.picture_text import Seeing
from edgeformer.families.picture_text.one_size import llava

LAYERS = (-2, -5, -8, -11, 6)
"""Layers that are read by a config.json that names none."""


def read(fields: Fields) -> Seeing:
    """Read the tower, the layers that are read of it, and the projector."""
    seeing = llava.read_llava(fields, layer=fields.take("vision_feature_layers", LAYERS))
    eps = fields.take("projector_layernorm_eps", 1e-5)
    assert isinstance(seeing.projector, MlpProjector)
    norm = NormConfig(kind="layer_norm", eps=eps, bias=True)
    return replace(seeing, projector=replace(seeing.projector, norm=norm))


FAMILY = replace(
    llava.FAMILY,
    summary="VipLLaVA: states of several layers of CLIP's tower, and text",
    read=read,
    tensors={**llava.TENSORS, "projector.norm": "multi_modal_projector.projector_layernorm"},
)
