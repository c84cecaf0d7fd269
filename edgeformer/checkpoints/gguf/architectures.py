"""Architectures of llama.cpp that edgeformer has a family of: their config.json, and the names of their tensors.

Sources: llama.cpp's converters (`conversion/`), which say what it stores differently, and the program that runs their
files (`src/models/`), which says what it computes where no key does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgeformer.checkpoints.gguf.metadata import Metadata
from edgeformer.errors import ConfigError

Config = dict[str, Any]
Joined = tuple[Literal["one after another", "alternating"], tuple[str, ...]]
"""Tensors of the file [X, rows, …] whose rows are one tensor of transformers, and their order there."""

LAYER = "model.layers.*"
DENSE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.*.attn_norm": f"{LAYER}.input_layernorm",
    "blk.*.attn_q": f"{LAYER}.self_attn.q_proj",
    "blk.*.attn_k": f"{LAYER}.self_attn.k_proj",
    "blk.*.attn_v": f"{LAYER}.self_attn.v_proj",
    "blk.*.attn_output": f"{LAYER}.self_attn.o_proj",
    "blk.*.attn_q_norm": f"{LAYER}.self_attn.q_norm",
    "blk.*.attn_k_norm": f"{LAYER}.self_attn.k_norm",
    "blk.*.ffn_norm": f"{LAYER}.post_attention_layernorm",
    "blk.*.ffn_gate": f"{LAYER}.mlp.gate_proj",
    "blk.*.ffn_up": f"{LAYER}.mlp.up_proj",
    "blk.*.ffn_down": f"{LAYER}.mlp.down_proj",
}
"""Names of modules in a file, and those in transformers. `*` is the layer's number, `#` one of stacked experts."""

EXPERTS = {
    "blk.*.ffn_gate_inp": f"{LAYER}.mlp.gate",
    "blk.*.ffn_gate_exps": f"{LAYER}.mlp.experts.#.gate_proj",
    "blk.*.ffn_up_exps": f"{LAYER}.mlp.experts.#.up_proj",
    "blk.*.ffn_down_exps": f"{LAYER}.mlp.experts.#.down_proj",
}
SHARED_EXPERT = {
    "blk.*.ffn_gate_inp_shexp": f"{LAYER}.mlp.shared_expert_gate",
    "blk.*.ffn_gate_shexp": f"{LAYER}.mlp.shared_expert.gate_proj",
    "blk.*.ffn_up_shexp": f"{LAYER}.mlp.shared_expert.up_proj",
    "blk.*.ffn_down_shexp": f"{LAYER}.mlp.shared_expert.down_proj",
}
MIXTRAL_EXPERTS = {
    "blk.*.ffn_gate_inp": f"{LAYER}.block_sparse_moe.gate",
    "blk.*.ffn_gate_exps": f"{LAYER}.block_sparse_moe.experts.#.w1",
    "blk.*.ffn_up_exps": f"{LAYER}.block_sparse_moe.experts.#.w3",
    "blk.*.ffn_down_exps": f"{LAYER}.block_sparse_moe.experts.#.w2",
}
FOUR_NORMS = {
    "blk.*.post_attention_norm": f"{LAYER}.post_attention_layernorm",
    "blk.*.ffn_norm": f"{LAYER}.pre_feedforward_layernorm",
    "blk.*.post_ffw_norm": f"{LAYER}.post_feedforward_layernorm",
}

ROTARY_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are read into the config."""

SOFTMAX, SOFTMAX_OF_CHOSEN = 1, 3
"""How experts are weighed, by llama.cpp's numbers: before or after the best ones are chosen."""
NO_POSITIONS_EVERY = 4
"""Every so many layers of SmolLM3 have no rotary embedding; llama.cpp has this number in its code."""


def _read_nothing(metadata: Metadata, config: Config) -> Config:
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to read files of one architecture.

    Attributes:
        model_type, class_name: of transformers.
        read: returns the fields of config.json beside those that all share.
        tensors: modules of transformers by those of the file.
        joined: modules of transformers that several tensors of the file make, by name.
        permuted: whether rows of queries and keys are pairs, (0, D/2, 1, D/2 + 1, …) of a head of size D.
        norm_offset: whether norms are stored as 1 + weight.
        partial: whether a part of each head may rotate.
        layer_norm: field of the epsilon of layer norms; None for RMS norms.
    """

    model_type: str
    class_name: str
    read: Callable[[Metadata, Config], Config] = _read_nothing
    tensors: Mapping[str, str] = field(default_factory=lambda: DENSE)
    joined: Mapping[str, Joined] = field(default_factory=dict)
    permuted: bool = False
    norm_offset: bool = False
    partial: bool = False
    layer_norm: str | None = None


def _biases(metadata: Metadata, config: Config) -> Config:
    """Read which projections have biases, which no key says."""
    return {
        "attention_bias": metadata.file.holds(r"blk\.0\.attn_(q|output)\.bias"),
        "mlp_bias": metadata.file.holds(r"blk\.0\.ffn_down\.bias"),
    }


def _experts(metadata: Metadata, count: str, *, intermediate: bool = True) -> Config:
    """Read the number of experts of each kind; count: the field's name."""
    found = {
        count: metadata.take("expert_count", int),
        "num_experts_per_tok": metadata.take("expert_used_count", int),
    }
    if intermediate:
        found["moe_intermediate_size"] = metadata.take("expert_feed_forward_length", int)
    return found


def _mixtral(metadata: Metadata, config: Config) -> Config:
    return _experts(metadata, "num_local_experts", intermediate=False)


def _qwen2(metadata: Metadata, config: Config) -> Config:
    return {"use_sliding_window": False}


def _qwen3(metadata: Metadata, config: Config) -> Config:
    return {"use_sliding_window": False, "attention_bias": metadata.file.holds(r"blk\.0\.attn_(q|output)\.bias")}


def _qwen2_moe(metadata: Metadata, config: Config) -> Config:
    shared = metadata.take("expert_shared_feed_forward_length", int)
    return {
        **_experts(metadata, "num_experts"), "shared_expert_intermediate_size": shared, "norm_topk_prob": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
        "qkv_bias": metadata.file.holds(r"blk\.0\.attn_q\.bias"),
    }  # fmt: skip


def _qwen3_moe(metadata: Metadata, config: Config) -> Config:
    metadata.fixed("expert_weights_norm", True)
    metadata.fixed("expert_gating_func", SOFTMAX)
    return {
        **_experts(metadata, "num_experts"), "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "use_sliding_window": False, "attention_bias": metadata.file.holds(r"blk\.0\.attn_q\.bias"),
    }  # fmt: skip


def _gemma(metadata: Metadata, config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma_scale(config: Config, largest: int) -> Config:
    """Read the scale of scores, which no key says: that of the largest model follows from other sizes."""
    widths = config["hidden_size"] // config["num_attention_heads"]
    scalar = widths if config["num_hidden_layers"] == largest else config["head_dim"]
    return {"query_pre_attn_scalar": scalar, "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(metadata: Metadata, config: Config) -> Config:
    return _gemma_scale(config, largest=46) | {
        "attn_logit_softcapping": metadata.take("attn_logit_softcapping", float, 50.0),
        "final_logit_softcapping": metadata.take("final_logit_softcapping", float, 30.0),
        "sliding_window": metadata.take("attention.sliding_window", int, 4096),
    }


def _gemma3(metadata: Metadata, config: Config) -> Config:
    metadata.fixed("attention.sliding_window_pattern", 6)
    return _gemma_scale(config, largest=62) | {
        "final_logit_softcapping": metadata.take("final_logit_softcapping", float, None),
        "sliding_window": metadata.take("attention.sliding_window", int),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": float(metadata.take("rope.freq_base_swa", float, 10000.0)),
    }


def _phi3(metadata: Metadata, config: Config) -> Config:
    size = metadata.take("rope.dimension_count", int, config["head_dim"])
    return {
        "sliding_window": metadata.take("attention.sliding_window", int, 0) or None,
        "partial_rotary_factor": size / config["head_dim"],
    }


def _granite(metadata: Metadata, config: Config) -> Config:
    return _biases(metadata, config) | {
        "attention_multiplier": metadata.take("attention.scale", float),
        "embedding_multiplier": metadata.take("embedding_scale", float),
        "residual_multiplier": metadata.take("residual_scale", float),
        "logits_scaling": metadata.take("logit_scale", float),
    }


def _granite_moe(metadata: Metadata, config: Config) -> Config:
    return _granite(metadata, config) | _experts(metadata, "num_local_experts", intermediate=False)


def _smollm3(metadata: Metadata, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    rotated = [int((layer + 1) % NO_POSITIONS_EVERY != 0) for layer in range(layers)]
    return _biases(metadata, config) | {
        "no_rope_layers": rotated, "no_rope_layer_interval": NO_POSITIONS_EVERY, "use_sliding_window": False,
    }  # fmt: skip


def _lfm2(metadata: Metadata, config: Config) -> Config:
    counts = metadata.take("attention.head_count_kv", list)
    return {
        "num_key_value_heads": max(counts), "norm_eps": config["rms_norm_eps"], "rms_norm_eps": None,
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "conv_L_cache": metadata.take("shortconv.l_cache", int), "block_auto_adjust_ff_dim": False,
        "conv_bias": metadata.file.holds(r"blk\.\d+\.shortconv\.in_proj\.bias"),
        "tie_embedding": config["tie_word_embeddings"],
    }  # fmt: skip


def _starcoder2(metadata: Metadata, config: Config) -> Config:
    bias = metadata.file.holds(r"blk\.0\.attn_q\.bias")
    return {"use_bias": bias, "hidden_act": "gelu_pytorch_tanh"}


def _gpt_oss(metadata: Metadata, config: Config) -> Config:
    metadata.fixed("expert_gating_func", SOFTMAX_OF_CHOSEN)
    metadata.fixed("expert_feed_forward_length", config["intermediate_size"])
    layers = config["num_hidden_layers"]
    scaling = dict(config["rope_scaling"] or {})
    return _experts(metadata, "num_local_experts", intermediate=False) | {
        "sliding_window": metadata.take("attention.sliding_window", int), "attention_bias": True,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"},
    }  # fmt: skip


def _cohere(metadata: Metadata, config: Config) -> Config:
    return {
        "logit_scale": metadata.take("logit_scale", float),
        "use_qk_norm": metadata.file.holds(r"blk\.0\.attn_q_norm\.weight"),
    }


def _cohere2(metadata: Metadata, config: Config) -> Config:
    return {
        "logit_scale": metadata.take("logit_scale", float),
        "sliding_window": metadata.take("attention.sliding_window", int),
        "sliding_window_pattern": 4,
    }


def _without(names: Mapping[str, str], *removed: str) -> dict[str, str]:
    return {name: theirs for name, theirs in names.items() if name not in removed}


GPT_OSS_EXPERTS = f"{LAYER}.mlp.experts"

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(model_type="llama", class_name="LlamaForCausalLM", read=_biases, permuted=True),
    "qwen2": Architecture(model_type="qwen2", class_name="Qwen2ForCausalLM", read=_qwen2),
    "qwen2moe": Architecture(
        model_type="qwen2_moe", class_name="Qwen2MoeForCausalLM", read=_qwen2_moe,
        tensors=DENSE | EXPERTS | SHARED_EXPERT,
    ),
    "qwen3": Architecture(model_type="qwen3", class_name="Qwen3ForCausalLM", read=_qwen3),
    "qwen3moe": Architecture(
        model_type="qwen3_moe", class_name="Qwen3MoeForCausalLM", read=_qwen3_moe, tensors=DENSE | EXPERTS
    ),
    "gemma": Architecture(model_type="gemma", class_name="GemmaForCausalLM", read=_gemma, norm_offset=True),
    "gemma2": Architecture(
        model_type="gemma2", class_name="Gemma2ForCausalLM", read=_gemma2, tensors=DENSE | FOUR_NORMS, norm_offset=True
    ),
    "gemma3": Architecture(
        model_type="gemma3_text", class_name="Gemma3ForCausalLM", read=_gemma3, tensors=DENSE | FOUR_NORMS,
        norm_offset=True,
    ),
    "phi3": Architecture(
        model_type="phi3", class_name="Phi3ForCausalLM", read=_phi3, partial=True,
        tensors=_without(DENSE, "blk.*.ffn_gate")
        | {"blk.*.attn_qkv": f"{LAYER}.self_attn.qkv_proj", "blk.*.ffn_up": f"{LAYER}.mlp.gate_up_proj"},
    ),
    "granite": Architecture(model_type="granite", class_name="GraniteForCausalLM", read=_granite, permuted=True),
    "granitemoe": Architecture(
        model_type="granitemoe", class_name="GraniteMoeForCausalLM", read=_granite_moe, permuted=True,
        tensors=DENSE | {
            "blk.*.ffn_gate_inp": f"{LAYER}.block_sparse_moe.router.layer",
            "blk.*.ffn_down_exps": f"{LAYER}.block_sparse_moe.output_linear",
        },
        joined={
            f"{LAYER}.block_sparse_moe.input_linear.weight": (
                "one after another", ("blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"),
            ),
        },
    ),
    "smollm3": Architecture(model_type="smollm3", class_name="SmolLM3ForCausalLM", read=_smollm3, permuted=True),
    "lfm2": Architecture(
        model_type="lfm2", class_name="Lfm2ForCausalLM", read=_lfm2,
        tensors=DENSE | {
            "token_embd_norm": "model.embedding_norm",
            "blk.*.attn_norm": f"{LAYER}.operator_norm",
            "blk.*.attn_output": f"{LAYER}.self_attn.out_proj",
            "blk.*.attn_q_norm": f"{LAYER}.self_attn.q_layernorm",
            "blk.*.attn_k_norm": f"{LAYER}.self_attn.k_layernorm",
            "blk.*.shortconv.in_proj": f"{LAYER}.conv.in_proj",
            "blk.*.shortconv.conv": f"{LAYER}.conv.conv",
            "blk.*.shortconv.out_proj": f"{LAYER}.conv.out_proj",
            "blk.*.ffn_norm": f"{LAYER}.ffn_norm",
            "blk.*.ffn_gate": f"{LAYER}.feed_forward.w1",
            "blk.*.ffn_up": f"{LAYER}.feed_forward.w3",
            "blk.*.ffn_down": f"{LAYER}.feed_forward.w2",
        },
    ),
    "olmo2": Architecture(
        model_type="olmo2", class_name="Olmo2ForCausalLM",
        tensors=_without(DENSE, "blk.*.attn_norm", "blk.*.ffn_norm") | _without(FOUR_NORMS, "blk.*.ffn_norm"),
    ),
    "starcoder2": Architecture(
        model_type="starcoder2", class_name="Starcoder2ForCausalLM", read=_starcoder2, layer_norm="norm_epsilon",
        tensors=_without(DENSE, "blk.*.ffn_gate")
        | {"blk.*.ffn_up": f"{LAYER}.mlp.c_fc", "blk.*.ffn_down": f"{LAYER}.mlp.c_proj"},
    ),
    "gpt-oss": Architecture(
        model_type="gpt_oss", class_name="GptOssForCausalLM", read=_gpt_oss,
        tensors=DENSE | {
            "blk.*.post_attention_norm": f"{LAYER}.post_attention_layernorm",
            "blk.*.attn_sinks.weight": f"{LAYER}.self_attn.sinks",
            "blk.*.ffn_gate_inp": f"{LAYER}.mlp.router",
            "blk.*.ffn_down_exps.weight": f"{GPT_OSS_EXPERTS}.down_proj_blocks",
            "blk.*.ffn_down_exps.bias": f"{GPT_OSS_EXPERTS}.down_proj_bias",
        },
        joined={
            f"{GPT_OSS_EXPERTS}.gate_up_proj_blocks": (
                "alternating", ("blk.*.ffn_gate_exps.weight", "blk.*.ffn_up_exps.weight"),
            ),
            f"{GPT_OSS_EXPERTS}.gate_up_proj_bias": (
                "alternating", ("blk.*.ffn_gate_exps.bias", "blk.*.ffn_up_exps.bias"),
            ),
        },
    ),
    "command-r": Architecture(
        model_type="cohere", class_name="CohereForCausalLM", read=_cohere, layer_norm="layer_norm_eps"
    ),
    "cohere2": Architecture(
        model_type="cohere2", class_name="Cohere2ForCausalLM", read=_cohere2, layer_norm="layer_norm_eps"
    ),
}  # fmt: skip
"""Architectures by the names that llama.cpp has for them."""

MIXTRAL = Architecture(
    model_type="mixtral", class_name="MixtralForCausalLM", read=_mixtral, permuted=True,
    tensors=DENSE | MIXTRAL_EXPERTS,
)  # fmt: skip
"""The architecture `llama` with experts."""


def find_architecture(metadata: Metadata) -> Architecture:
    """Return the architecture of a file. Raises ConfigError for one that is not read, by its name."""
    name = metadata.architecture
    if name not in ARCHITECTURES:
        if name == "clip":
            raise ConfigError(
                f"{metadata.file.name} holds what reads pictures beside a model (mmproj); give the file of the model."
            )
        raise ConfigError(
            f"{metadata.file.name} has the architecture {name!r}, which edgeformer does not read from GGUF; it reads "
            f"{', '.join(ARCHITECTURES)}. Export the model's folder of safetensors instead, if there is one."
        )
    if name == "llama" and metadata.take("expert_count", int, 0):
        return MIXTRAL
    return ARCHITECTURES[name]
