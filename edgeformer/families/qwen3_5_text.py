"""The text model of Qwen3.5.

Gated DeltaNet in most layers, attention with a gated output in the others. Source:
transformers/models/qwen3_5/modeling_qwen3_5.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._delta_net import DEFAULTS, DELTA_TENSORS, GATED_TENSORS, read_gated
from edgeformer.families._family import Family, Fields
from edgeformer.families._mtp import MTP, PREDICTION
from edgeformer.families.llama import TENSORS


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read the config.json of the text model of Qwen3.5."""
    fields.ignore("mlp_only_layers")  # of Qwen3-Next, where the other layers have experts
    return read_gated(fields, context_length)


FAMILY = Family(
    summary="Qwen3.5, text: Gated DeltaNet, and attention with a gated output in some layers",
    read_config=read_config,
    tensors=TENSORS | GATED_TENSORS | DELTA_TENSORS,
    defaults=DEFAULTS | {"num_key_value_heads": 4},
    ignored_tensors=(PREDICTION,),
    mtp=MTP,
)
