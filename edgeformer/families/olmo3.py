"""OLMo 3.

OLMo 2 with windows in three of four layers, and rotary embeddings by layer type: only full layers are scaled for long
contexts. Source: transformers/models/olmo3/modeling_olmo3.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families import olmo2
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import FULL, SLIDING, every_nth_full, read_layer_types, with_windows
from edgeformer.families._rotary import read_context_length, read_rotary_by_type

BASE = 500000.0


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read an OLMo 3 config.json."""
    # Another rope_theta beside the layer types is read for all layers by transformers 4, for full ones only by 5.
    fields.choice("rope_theta", {BASE: None}, BASE)
    otherwise = {FULL: {"rope_theta": BASE, **fields.take("rope_scaling", {})}, SLIDING: {"rope_theta": BASE}}
    head_dim = fields.take("head_dim", fields.take("hidden_size") // fields.take("num_attention_heads"))
    rotary = read_rotary_by_type(fields, head_dim, read_context_length(fields, context_length), otherwise)
    config = olmo2.read_olmo2(fields, context_length, rotary=rotary[FULL])
    types = read_layer_types(fields, every_nth_full(4, len(config.blocks)))
    return with_windows(config, types, fields.take("sliding_window", None), rotary=rotary[SLIDING])


FAMILY = Family(
    summary="OLMo 3: norms after each branch, windows in three of four layers, rotary scaling in the others",
    read_config=read_config,
    tensors=olmo2.FAMILY.tensors,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
)
