"""Phi-3, Phi-3.5 and Phi-4, dense models.

Llama with packed projections, a window in every layer or none, and partial rotary embeddings.
Source: transformers/models/phi3/modeling_phi3.py.
"""

from edgeformer.config import DecoderConfig
from edgeformer.families._family import Family, Fields, packed_gate_up, packed_qkv
from edgeformer.families._layers import SLIDING, with_windows
from edgeformer.families.llama import TENSORS, read_llama


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a Phi-3 config.json."""
    fields.ignore("embd_pdrop", "resid_pdrop")
    # Fields of checkpoints that transformers ignores.
    for name, value in (("attention_bias", False), ("mlp_bias", False), ("lm_head_bias", False)):
        fields.choice(name, {value: None}, value)
    for name in ("full_attn_mod", "interpolate_factor"):
        fields.choice(name, {1: None}, 1)
    config = read_llama(fields, context_length, fraction=1.0)
    window = fields.take("sliding_window", None)
    return config if window is None else with_windows(config, [SLIDING] * len(config.blocks), window)


FAMILY = Family(
    summary="Phi-3, Phi-3.5, Phi-4; windows, partial rotary, LongRoPE",
    read_config=read_config,
    tensors={
        **TENSORS,
        **packed_qkv("model.layers.*.self_attn.qkv_proj"),
        **packed_gate_up("model.layers.*.mlp.gate_up_proj"),
    },
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    reads_is_causal=True,
)
