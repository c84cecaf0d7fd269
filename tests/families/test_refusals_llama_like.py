"""Variants of Llama refuse by name what they do not support, and say why."""

import pytest
from rows import FAMILIES

from edgeformer.errors import ConfigError
from edgeformer.families import read_model_config

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def read(family, context_length=None, **options):
    row = FAMILIES[family]
    return read_model_config({"model_type": family} | row.sizes | options, context_length)[1]


def windows(config):
    return [block.attention.window for block in config.blocks]


REFUSALS = [
    ("apertus", {"post_norm": True}, "post_norm = True, which is not supported here; supported: False"),
    ("apertus", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu"),
    ("arcee", {"hidden_act": "xielu"}, "hidden_act = 'xielu', which is not supported here; supported: gelu"),
    ("arcee", {"sliding_window": 8}, "fields that the arcee family does not know: sliding_window = 8"),
    ("cohere", {"rms_norm_eps": 1e-5}, "fields that the cohere family does not know: rms_norm_eps"),
    ("cohere", {"layer_types": [SLIDING] * 3}, "fields that the cohere family does not know: layer_types"),
    ("cohere2", {"use_qk_norm": True}, "use_qk_norm = True, which is not supported here; supported: False"),
    ("cohere2", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("cohere2", {"layer_switch": 2}, "layer_switch = 2, which is not supported here; supported: 4"),
    ("cohere2", {"position_embedding_type": "nope"}, "position_embedding_type = 'nope', which is not supported here"),
    ("cwm", {"sliding_window": None}, "no sliding_window; a cwm model requires it"),
    ("cwm", {"attention_bias": True}, "fields that the cwm family does not know: attention_bias = True"),
    ("ernie4_5", {"moe_num_experts": 8}, "fields that the ernie4_5 family does not know: moe_num_experts = 8"),
    (
        "ernie4_5_moe",
        {"moe_gate": "top2_fused"},
        "moe_gate = 'top2_fused', which is not supported here; supported: topk",
    ),
    ("ernie4_5_moe", {"moe_k": 7}, r"experts_per_token is 7; it must be from 1 to num_experts \(6\)"),
    (
        "gemma3n_text",
        {"num_kv_shared_layers": 4, "layer_types": [SLIDING, FULL] * 2 + [SLIDING]},
        "num_kv_shared_layers = 4, and the 1 layers before those are not of all types in layer_types",
    ),
    ("gemma3n_text", {"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern of 1 layers and num_hidden"),
    ("gemma3n_text", {"intermediate_size": [96]}, "intermediate_size of 1 layers and num_hidden_layers = 5"),
    ("gemma3n_text", {"altup_num_inputs": 1}, r"AltUpConfig\.streams is 1; it must be at least 2"),
    ("gemma3n_text", {"hidden_size_per_layer_input": 0}, r"BlockConfig\.altup"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all', which is not supp"),
    (
        "gemma4_text",
        {"per_layer_config": {"0": {"head_dim": 8}}},
        "has per_layer_config = .*; supported here: one head_dim",
    ),
    (
        "gemma4_text",
        {"enable_moe_block": True},
        r"ExpertsConfig\.num_experts is 0; it must be positive|intermediate_size is 0",
    ),
    ("exaone4", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "no layer_types; a exaone4 model requires it"),
    ("exaone4", {"sliding_window_pattern": 0}, "no layer_types; a exaone4 model requires it"),
    (
        "exaone4",
        {"sliding_window_pattern": "LLLG", "layer_types": [FULL] * 3},
        "layer_types of 3 layers and num_hidden_layers = 4",
    ),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True, which is not supported here"),
    (
        "gemma",
        {"hidden_act": "gelu", "hidden_activation": "relu"},
        "hidden_act = 'gelu' and hidden_activation = 'relu'; versions of transformers differ",
    ),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True, which is not supported here; supported: False"),
    (
        "deepseek_v2",
        {"topk_method": "noaux_tc"},
        "topk_method = 'noaux_tc', which is not supported here; supported: gree",
    ),
    (
        "deepseek_v3",
        {"scoring_func": "softmax"},
        "scoring_func = 'softmax', which is not supported here; supported: sigm",
    ),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2, which is not supported here; supported: 1"),
    ("deepseek_v3", {"n_group": 3}, r"num_experts is 8; it must be a multiple of the router's groups \(3\)"),
    ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "does not know: quantization_config = {'quant_m"),
    ("dots1", {"sliding_window": None, "layer_types": [SLIDING] * 3}, "no sliding_window is in use"),
    ("flex_olmo", {"clip_qkv": 8.0}, "fields that the flex_olmo family does not know: clip_qkv = 8.0"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True, which is not supported"),
    ("gemma2", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("gemma2", {"layer_types": [FULL, "linear_attention", FULL]}, "'linear_attention'; supported here: full_attention"),
    ("gemma2", {"layer_types": [FULL, SLIDING]}, "layer_types of 2 layers and num_hidden_layers = 3"),
    ("gemma2", {"hidden_activation": "mish"}, "hidden_activation = 'mish', which is not supported here; supported: ge"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "AttentionConfig.softcap is -1.0; it must be positive, or None"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0, which is not supported here"),
    ("mixtral", {"num_experts": 4}, r"several numbers of experts \(6, 4\). Keep the right one"),
    ("mixtral", {"num_experts_per_tok": 7}, r"experts_per_token is 7; it must be from 1 to num_experts \(6\)"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0, which is not supported here; supported: None"),
    (
        "olmoe",
        {"shared_expert_intermediate_size": 8},
        "fields that the olmoe family does not know: shared_expert_inter",
    ),
    ("mamba2", {"hidden_act": "relu"}, "hidden_act = 'relu', which is not supported here; supported: silu, swish"),
    ("mamba2", {"num_heads": 7}, "7 heads of 16, which is not expand times hidden_size"),
    ("mamba2", {"mamba_d_ssm": 64}, "fields that the mamba2 family does not know: mamba_d_ssm = 64"),
    ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok = 1, which is not supported here; supported: 2"),
    (
        "phimoe",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "neither plain nor longrope with a short_mscale",
    ),
    ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "intermediate_size is 0; it must be positive"),
    ("qwen2_moe", {"layer_types": [SLIDING] * 3}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("qwen3_moe", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu"),
    (
        "gemma3_text",
        {"rope_parameters": {"rope_type": "linear"}},
        "rope_parameters have rope_type; here they are given",
    ),
    (
        "gemma3_text",
        {"rope_parameters": {SLIDING: {"rope_type": "linear", "factor": 2.0, "twist": 1}}},
        "parameters that are not known: twist",
    ),
    ("glm", {"attention_bias": None}, "no attention_bias; a glm model requires it"),
    ("glm4", {"use_qk_norm": True}, "fields that the glm4 family does not know: use_qk_norm = True"),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types of 3 layers and num_hidden_layers = 2"),
    ("gpt_neo", {"attention_types": [[["global", "near"], 1]]}, "attention_types have 'near'; supported here: global"),
    ("gpt_neo", {"attention_layers": ["local"] * 2}, "attention_layers that do not follow from its attention_types"),
    ("granite", {"num_local_experts": 4}, "fields that the granite family does not know: num_local_experts = 4"),
    ("granite_swa", {"layer_rope_theta": [1e4]}, "layer_rope_theta of 1 layers and num_hidden_layers = 5"),
    ("granite_swa", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("glm4_moe", {"rope_interleave": True}, "fields that the glm4_moe family does not know: rope_interleave = True"),
    ("glm4_moe_lite", {"mlp_layer_types": ["moe"] * 3}, "mlp_layer_types have 'moe'; supported here: dense, sparse"),
    ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types of 1 layers and num_hidden_layers = 3"),
    ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act = 'gelu', which is not supported here; supported: silu"),
    ("gpt_oss", {"quantization_config": {"quant_method": "fp8"}}, "quant_method = 'fp8'; supported here: mxfp4"),
    ("gpt_oss", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("granitemoe", {"mlp_bias": True}, "mlp_bias = True, which is not supported here; supported: False"),
    ("granitemoe", {"shared_intermediate_size": 8}, "fields that the granitemoe family does not know: shared_interm"),
    ("bamba", {"hidden_act": "gelu"}, "hidden_act = 'gelu', which is not supported here; supported: silu, swish"),
    ("falcon_h1", {"hidden_act": "relu"}, "hidden_act = 'relu', which is not supported here; supported: silu, swish"),
    ("granitemoehybrid", {"hidden_act": "gelu"}, "hidden_act = 'gelu', which is not supported here; supported: silu"),
    ("granitemoehybrid", {"position_embedding_type": "learned"}, "position_embedding_type = 'learned', which is not"),
    ("granitemoehybrid", {"normalization_function": "layernorm"}, "normalization_function = 'layernorm', which is not"),
    ("granitemoehybrid", {"shared_intermediate_size": 0}, "intermediate_size is 0; it must be positive"),
    ("granitemoehybrid", {"num_local_experts": 1, "num_experts_per_tok": 2}, "experts_per_token is 2; it must be from"),
    ("granitemoehybrid", {"layer_types": ["mamba", "conv", "mamba"]}, "layer types have 'conv'; supported here: full_"),
    ("granitemoehybrid", {"layer_types": ["mamba"]}, "types of 1 layers and num_hidden_layers = 3"),
    ("granitemoehybrid", {"mamba_n_heads": 7}, "7 Mamba heads of 16, and its layers have 128 channels"),
    ("granitemoehybrid", {"mlp_bias": True}, "mlp_bias = True, which is not supported here; supported: False"),
    ("granitemoeshared", {"num_experts_per_tok": 8}, r"experts_per_token is 8; it must be from 1 to num_experts \(7\)"),
    ("helium", {"layer_types": [SLIDING] * 3}, "fields that the helium family does not know: layer_types"),
    ("hunyuan_v1_dense", {"use_cla": True}, "use_cla = True, which is not supported here; supported: False"),
    (
        "hunyuan_v1_dense",
        {"attention_head_dim": 64},
        "attention_head_dim = 64, which is not supported here",
    ),
    (
        "hunyuan_v1_dense",
        {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 1000.0}},
        "RoPE scaling 'linear' has parameters that are not known: alpha",
    ),
    ("hyperclovax", {"use_post_norm": None}, "no use_post_norm; a hyperclovax model requires it"),
    ("jais2", {"rms_norm_eps": 1e-6}, "fields that the jais2 family does not know: rms_norm_eps"),
    ("lfm2_moe", {"layer_types": None}, "no layer_types; a lfm2_moe model requires it"),
    ("lfm2_moe", {"block_ff_dim": 64}, "fields that the lfm2_moe family does not know: block_ff_dim = 64"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved = True, which is not supported here; supported: False"),
    (
        "llama4_text",
        {"moe_layers": [1], "num_local_experts": 4, "num_experts_per_tok": 5},
        r"experts_per_token is 5; it must be from 1 to num_experts \(4\)",
    ),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers of 2 layers and num_hidden_layers = 4"),
    ("llama4_text", {"layer_types": [SLIDING] * 4}, "'sliding_attention'; supported here: full_attention, chunked_att"),
    ("llama4_text", {"attention_chunk_size": None}, "no attention_chunk_size; a llama4_text model requires it"),
    ("ministral", {"sliding_window": None, "layer_types": [SLIDING] * 3}, "no sliding_window is in use"),
    ("ministral3", {"layer_types": [SLIDING] * 3}, "fields that the ministral3 family does not know: layer_types"),
    (
        "ministral3",
        {"rope_parameters": {"rope_type": "default"}},
        "rope_parameters have no original_max_position_embeddings; a ministral3 model requires it",
    ),
    (
        "ministral3",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}},
        "rope_parameters have no original_max_position_embeddings; a ministral3 model requires it",
    ),
    ("mistral", {"layer_types": [FULL] * 3}, "fields that the mistral family does not know: layer_types"),
    ("minicpm3", {"num_key_value_heads": 2}, r"num_kv_heads is 2; it must be num_heads \(4\) in latent attention"),
    ("minicpm3", {"v_head_dim": 18}, r"it must be given a value_dim of at most head_dim \(17\)"),
    ("minicpm3", {"rope_interleave": True}, "fields that the minicpm3 family does not know: rope_interleave = True"),
    ("mistral", {"attention_bias": True}, "fields that the mistral family does not know: attention_bias = True"),
    ("mistral", {"sliding_window": 0}, "AttentionConfig.window is 0; it must be positive, or None"),
    ("nanochat", {"sliding_window": 8}, "fields that the nanochat family does not know: sliding_window = 8"),
    (
        "lfm2",
        {"layer_types": ["conv", FULL, "mamba"]},
        "layer_types have 'mamba'; supported here: full_attention, conv",
    ),
    ("lfm2", {"layer_types": ["conv", FULL]}, "layer_types of 2 layers and num_hidden_layers = 3"),
    ("lfm2", {"conv_L_cache": 1}, "ShortConvConfig.kernel_size is 1; it must be at least 2"),
    ("nemotron", {"kv_channels": 32}, "kv_channels = 32, which is not supported here; supported: 16"),
    ("qwen3_5_text", {"hidden_act": "gelu"}, "hidden_act = 'gelu', which is not supported here; supported: silu"),
    (
        "qwen3_5_text",
        {"attn_output_gate": False},
        "attn_output_gate = False, which is not supported here",
    ),
    ("qwen3_5_text", {"output_gate_type": "tanh"}, "output_gate_type = 'tanh', which is not supported here"),
    (
        "qwen3_5_text",
        {"linear_num_value_heads": 3},
        r"num_value_heads is 3; it must be a multiple of .* \(2\)",
    ),
    ("qwen3_5_text", {"linear_conv_kernel_dim": 1}, "DeltaNetConfig.kernel_size is 1; it must be at least 2"),
    (
        "qwen3_5_text",
        {"layer_types": [FULL, SLIDING, FULL]},
        "layer_types have 'sliding_attention'; supported here: full_attention, linear_attention",
    ),
    ("qwen3_5_text", {"layer_types": [FULL]}, "layer_types of 1 layers and num_hidden_layers = 3"),
    ("qwen3_5_text", {"num_experts": 4}, "fields that the qwen3_5_text family does not know: num_experts = 4"),
    ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob = False, which is not supported here"),
    ("qwen3_next", {"use_sliding_window": True}, "use_sliding_window = True, which is not supported here"),
    ("qwen3_next", {"num_experts_per_tok": 7}, r"experts_per_token is 7; it must be from 1 to num_experts \(6\)"),
    ("nemotron", {"layer_norm_eps": 1e-5}, "fields that the nemotron family does not know: layer_norm_eps"),
    ("olmo", {"rms_norm_eps": 1e-6}, "fields that the olmo family does not know: rms_norm_eps"),
    ("olmo2", {"clip_qkv": 8.0}, r"fields that the olmo2 family does not know: clip_qkv = 8\.0"),
    ("olmo2", {"mlp_bias": True}, "fields that the olmo2 family does not know: mlp_bias = True"),
    ("olmo3", {"rope_theta": 1e6}, r"rope_theta = 1000000\.0, which is not supported here; supported: 500000\.0"),
    (
        "olmo3",
        {"rope_parameters": {"rope_type": "yarn"}},
        "rope_parameters have rope_type; here they are given by layer",
    ),
    ("olmo3", {"layer_types": [CHUNKED] * 4}, "'chunked_attention'; supported here: full_attention, sliding_attention"),
    ("persimmon", {"num_key_value_heads": 2}, "num_key_value_heads = 2, which is not supported here; supported: 4"),
    ("qwen2", {"use_mrope": True}, "use_mrope = True, which is not supported here; supported: False"),
    ("qwen2", {"layer_types": [SLIDING] * 3}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    (
        "qwen3",
        {"quantization_config": {"bits": 4}},
        "the qwen3 family does not know: quantization_config = {'bits': 4}",
    ),
    ("qwen3", {"layer_types": [CHUNKED] * 3}, "'chunked_attention'; supported here: full_attention, sliding_attention"),
    ("seed_oss", {"qk_norm": True}, "fields that the seed_oss family does not know: qk_norm = True"),
    ("smollm3", {"layer_types": [SLIDING] * 4}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers of 2 layers and num_hidden_layers = 4"),
    ("smollm3", {"sliding_window_pattern": 2}, "fields that the smollm3 family does not know: sliding_window_pattern"),
    ("vaultgemma", {"sliding_window": None}, r"sliding layers \(layer_types\), and no sliding_window is in use"),
    ("youtu", {"head_dim": 16}, "head_dim = 16, which is not supported here; supported: 6"),
    ("youtu", {"qk_head_dim": 18}, "qk_head_dim = 18, which is not supported here; supported: 17"),
    ("youtu", {"n_routed_experts": 8}, "fields that the youtu family does not know: n_routed_experts = 8"),
]


@pytest.mark.parametrize(("family", "options", "message"), REFUSALS)
def test_what_is_not_read_is_refused_by_name(family, options, message):
    with pytest.raises(ConfigError, match=message):
        read(family, **options)


def test_a_window_that_hides_nothing_is_none():
    assert windows(read("mistral", sliding_window=8)) == [8, 8, 8]
    assert windows(read("mistral", sliding_window=255)) == [255] * 3
    assert windows(read("mistral", sliding_window=256)) == [None] * 3
    assert windows(read("mistral", 8, sliding_window=8)) == [None] * 3
    assert windows(read("gemma2", 9)) == [8, None, 8]


def test_a_chunk_or_a_temperature_that_does_nothing_is_none():
    config = read("llama4_text")
    assert [block.attention.chunk for block in config.blocks] == [8, 8, 8, None]
    assert config.blocks[3].attention.query_temperature is not None
    short = read("llama4_text", 7)
    assert all(block.attention.chunk is None and not block.attention.query_temperature for block in short.blocks)


def test_windows_begin_where_max_window_layers_says():
    used = {"use_sliding_window": True, "sliding_window": 8}
    assert windows(read("qwen2", **used, max_window_layers=2)) == [None, None, 8]
    assert windows(read("qwen2", **used)) == [None] * 3  # from layer 28 on
    assert windows(read("qwen3", sliding_window=8, max_window_layers=0)) == [None] * 3
    assert windows(read("qwen3", **used, layer_types=[SLIDING, FULL, FULL])) == [8, None, None]


def test_gemma_3_reads_both_spellings_of_its_rotary_parameters():
    old = {"rope_theta": 2e6, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = {FULL: {"rope_type": "linear", "rope_theta": 2e6, "factor": 8.0}, SLIDING: {"rope_theta": 5e3}}
    config = read("gemma3_text", **old)
    assert config == read("gemma3_text", rope_parameters=new)
    rotaries = [block.attention.rotary for block in config.blocks]
    assert [(rotary.base, rotary.scaling and rotary.scaling.factor) for rotary in rotaries] == [(5e3, None)] * 5 + [
        (2e6, 8.0)
    ]


def test_full_layers_have_no_positions_where_there_are_windows():
    def rotates(family, **options):
        return [block.attention.rotary is not None for block in read(family, **options).blocks]

    assert rotates("cohere2") == rotates("exaone4") == [True, True, True, False]
    assert rotates("cohere2", sliding_window=256) == [True, True, True, False]
    assert rotates("exaone4", sliding_window=None, layer_types=[FULL] * 4) == [True] * 4
    assert rotates("olmo3") == [True] * 4


def test_olmo_3_scales_rotary_embeddings_in_full_layers_only():
    linear = {"rope_type": "linear", "factor": 8.0}
    config = read("olmo3", rope_scaling=linear, rope_theta=500000)
    assert config == read("olmo3", rope_parameters={FULL: linear | {"rope_theta": 5e5}, SLIDING: {}})
    scalings = [block.attention.rotary.scaling for block in config.blocks]
    assert scalings[:3] == [None] * 3
    assert scalings[3].factor == 8.0


def test_what_apertus_says_about_positions_replaces_its_default():
    def scaling(**options):
        return read("apertus", **options).blocks[0].attention.rotary.scaling

    assert scaling().factor == scaling(rope_scaling=None, rope_theta=12e6).factor == 8.0
    assert scaling(rope_scaling={"type": "linear", "factor": 2.0}).factor == 2.0
    assert scaling(rope_parameters={"rope_type": "default"}) is None
