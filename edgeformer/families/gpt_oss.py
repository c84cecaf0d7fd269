"""gpt-oss 20B and 120B.

Grouped heads with sinks, windows in every second layer, and experts with biases and a clamped SwiGLU, stored in MXFP4
or in floating point. Source: transformers/models/gpt_oss/modeling_gpt_oss.py.
"""

from edgeformer.config import DecoderConfig, RouterConfig
from edgeformer.errors import ConfigError
from edgeformer.families._experts import Tables, read_experts, with_experts
from edgeformer.families._family import Family, Fields, Packed
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, with_windows
from edgeformer.families._rotary import read_context_length, read_rotary
from edgeformer.families.llama import TENSORS, read_attention_bias, read_llama

EXPERTS = "model.layers.*.mlp.experts"
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""Rope parameters of a config.json without any."""


def _gate_up(part: int) -> dict[str, Packed]:
    """Return the places of the gates (part 0) or of the other first layers (1): their rows alternate."""
    fused = f"{EXPERTS}.gate_up_proj"
    return {
        "weight": Packed(f"{fused}_blocks|{fused}", part, "alternating"),
        "bias": Packed(f"{fused}_bias", part, "alternating"),
    }


EXPERT_TENSORS: Tables = {
    "blocks.*.feed_forward.router.projection": "model.layers.*.mlp.router",
    **{f"blocks.*.feed_forward.experts.gate.{name}": place for name, place in _gate_up(0).items()},
    **{f"blocks.*.feed_forward.experts.up.{name}": place for name, place in _gate_up(1).items()},
    "blocks.*.feed_forward.experts.down.weight": f"{EXPERTS}.down_proj_blocks|{EXPERTS}.down_proj",
    "blocks.*.feed_forward.experts.down.bias": f"{EXPERTS}.down_proj_bias",
}


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a gpt-oss config.json."""
    fields.ignore("experts_per_token", "initial_context_length")  # other names, which transformers does not read
    fields.choice("hidden_act", {"silu": None}, "silu")
    method = fields.take("quantization_config", {"quant_method": "mxfp4"}).get("quant_method")
    if method != "mxfp4":
        raise ConfigError(f"config.json's quantization_config has quant_method = {method!r}; supported here: mxfp4.")
    positions = read_context_length(fields, context_length)
    rotary = read_rotary(fields, fields.take("head_dim"), positions, base=150000.0, otherwise=YARN)
    swiglu = {"activation": "silu", "beta": fields.take("swiglu_alpha"), "limit": fields.take("swiglu_limit")}
    config = read_llama(
        fields,
        context_length,
        attention={"rotary": rotary, "sinks": True, **read_attention_bias(fields)},
        feed_forward={**swiglu, "up_offset": 1.0, "bias": True},
    )
    otherwise = [FULL if layer % 2 else SLIDING for layer in range(len(config.blocks))]
    config = with_windows(config, read_layer_types(fields, otherwise), fields.take("sliding_window", None))
    router = RouterConfig(scoring="softmax", normalized=True, bias=True)
    return with_experts(config, read_experts(fields, config.blocks[0].feed_forward, router, num_experts=128))


FAMILY = Family(
    summary="gpt-oss: sinks, windows by layer, experts with biases and a clamped SwiGLU, also in MXFP4",
    read_config=read_config,
    tensors={**TENSORS, **EXPERT_TENSORS, "blocks.*.attention.sinks": "model.layers.*.self_attn.sinks"},
    transposed=("*.experts.gate_up_proj", "*.experts.down_proj"),
    defaults={
        "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5, "attention_bias": True, "sliding_window": 128,
        "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    },
)  # fmt: skip
