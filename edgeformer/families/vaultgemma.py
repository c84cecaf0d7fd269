"""VaultGemma.

Gemma 2 without norms after the branches. Source: transformers/models/vaultgemma/modeling_vaultgemma.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import gemma2
from edgeformer.families._family import Family, Fields
from edgeformer.families.llama import TENSORS


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a VaultGemma config.json."""
    attention = {"softcap": fields.take("attn_logit_softcapping", None)}
    return gemma2.read_gemma2(fields, context_length, pattern=2, attention=attention, norm_placement="pre")


FAMILY = Family(
    summary="VaultGemma: Gemma 2 with fewer norms",
    read_config=read_config,
    tensors={**TENSORS, "blocks.*.feed_forward_norm": "model.layers.*.pre_feedforward_layernorm"},
    defaults=gemma2.FAMILY.defaults,
)
