"""Families refuse by name what they do not support: fields, values, positions, mixtures of experts."""

import pytest
from rows import FAMILIES

from edgeformer.errors import ConfigError
from edgeformer.families import read_model_config

LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + i for i in range(8)],
    "long_factor": [9.0] * 8,
}  # fmt: skip


def read(family, context_length=None, **options):
    row = FAMILIES[family]
    return read_model_config({"model_type": family} | row.sizes | options, context_length)[1]


REFUSALS = [
    ("biogpt", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu, gelu_fast"),
    ("biogpt", {"rotary_dim": 8}, "fields that the biogpt family does not know: rotary_dim = 8"),
    # Both change the maths: residuals of normalized states, or no biases.
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm = True"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact = True, which is not supported here; supported: False"),
    ("bloom", {"n_inner": 96}, "n_inner = 96, which is not supported here; supported: 256"),
    ("bloom", {"n_embed": 96}, "hidden_size = 64, which is not supported here; supported: 96"),
    ("bloom", {"alibi": False}, "fields that the bloom family does not know: alibi = False"),
    ("codegen", {"n_head": 6, "n_embd": 96}, "n_head = 6; CodeGen's heads are divided by 4"),
    ("codegen", {"tie_word_embeddings": True}, "tie_word_embeddings = True, which is not supported here"),
    ("falcon", {"alibi": True}, "alibi = True, which is not supported here; supported: False"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2, which is not .*supported: 1"),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn = False, .*supported: True"),
    ("falcon", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads = 2, which is not .*supported: 4"),
    ("falcon", {"activation": "mish"}, "activation = 'mish', which is not supported here"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True, which is not .*supported: False"),
    ("gpt2", {"n_head": 5}, "has 5 heads, which do not divide the hidden size, 64"),
    ("gpt2", {"activation_function": "laplace"}, "activation_function = 'laplace', which is not supported here"),
    ("gpt2", {"per_layer_config": {"0": {"n_inner": 8}}}, "the gpt2 family does not know: per_layer_config = "),
    ("gpt_bigcode", {"add_cross_attention": True}, "add_cross_attention = True, which is not supported here"),
    ("gpt_bigcode", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True, which is not"),
    ("gpt_neox", {"num_key_value_heads": 2}, "fields that the gpt_neox family does not know: num_key_value_heads = 2"),
    (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}},
        "RoPE scaling 'proportional' is not supported with partial rotary embeddings",
    ),
    ("gptj", {"rotary": False}, "rotary = False, which is not supported here; supported: True"),
    ("gptj", {"scale_attn_weights": False}, "scale_attn_weights = False, which is not supported here; supported: True"),
    ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings = True, which is not .*supported: False"),
    ("gptj", {"rotary_dim": 20}, r"rotary_dim=20.* it must be no wider than head_dim \(16\)"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi = False, which is not supported here; supported: True"),
    ("mpt", {"attn_config": {"alibi_bias_max": 16}}, "alibi_bias_max = 16, which is not supported here; supported: 8"),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type = 'multiquery_attention', which is not"),
    ("mpt", {"attn_config": {"prefix_lm": True}}, "prefix_lm = True, which is not supported here; supported: False"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln = True, which is not supported here; supported: False"),
    ("mpt", {"attn_config": {"rope": True}}, "fields that the mpt family does not know: rope = True"),
    ("mpt", {"expansion_ratio": 2}, "expansion_ratio = 2, which is not supported here; supported: 4"),
    ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale = 'inv_sqrt_d_model', which is not supported here"),
    ("mpt", {"no_bias": False}, "no_bias = False, which is not supported here; supported: True"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type = 'rmsnorm', which is not supported here; supported: low_precision"),
    # OPT-350M.
    ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim = 32, which is not supported here; supported: 64"),
    ("opt", {"activation_function": ["relu"]}, r"activation_function = \['relu'\], which is not supported here"),
    ("phi", {"tie_word_embeddings": True}, "tie_word_embeddings = True, which is not supported here; supported: False"),
    ("phi", {"sliding_window": 8}, "fields that the phi family does not know: sliding_window = 8"),
    ("phi3", {"attention_bias": True}, "attention_bias = True, which is not supported here; supported: False"),
    ("phi3", {"full_attn_mod": 2}, "full_attn_mod = 2, which is not supported here; supported: 1"),
    ("phi3", {"num_local_experts": 16}, "fields that the phi3 family does not know: num_local_experts = 16"),
    (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64, "is_causal": False},
        "longer than 64 tokens, which only a decoder of text takes account of. Export with --context-length 64 or less",
    ),
    (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.5},
        "must be given 4 factors, one for each pair",
    ),
    ("stablelm", {"head_dim": 32}, "head_dim = 32, which is not supported here; supported: 16"),
    ("stablelm", {"norm_eps": 1e-5}, "fields that the stablelm family does not know: norm_eps"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type = 'rms_norm', which is not supported here; supported: layer_"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type = 'gated', which is not supported here; supported: default"),
    ("starcoder2", {"sliding_window": 0}, "AttentionConfig.window is 0; it must be positive, or None"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "options", "message"), REFUSALS)
def test_what_is_not_computed_is_refused_by_name(family, options, message):
    with pytest.raises(ConfigError, match=message):
        read(family, **options)


@pytest.mark.parametrize("family", ["bloom", "gpt2", "mpt", "opt"])
@pytest.mark.parametrize("length", [0, -1])
def test_a_context_of_no_tokens_is_refused(family, length):
    with pytest.raises(ConfigError, match=rf"--context-length is {length}; "):
        read(family, length)


@pytest.mark.parametrize("family", ["gpt2", "mpt"])
def test_a_context_beyond_the_positions_is_refused(family):
    with pytest.raises(ConfigError, match="--context-length is 257; this model has positions 1 to 256"):
        read(family, 257)


def test_nothing_in_bloom_ends_at_a_position():
    assert read("bloom").context_length == 2048
    assert read("bloom", seq_length=512).context_length == 512
    assert read("bloom", 5000, seq_length=512).context_length == 5000


@pytest.mark.parametrize(("model_type", "field"), [("dbrx", "num_local_experts"), ("jetmoe", "num_local_experts")])
def test_mixtures_of_experts_without_a_family_are_refused(model_type, field):
    with pytest.raises(ConfigError, match=rf"{model_type} is a mixture of experts \({field} = 8\), .*no blocks"):
        read_model_config({"model_type": model_type, "hidden_size": 64, field: 8})


def test_what_older_files_call_otherwise_means_the_same():
    new = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert read("gpt_neox", rope_parameters=new) == read("gpt_neox", rotary_pct=0.5, rotary_emb_base=500)
    assert read("phi", rope_parameters=new) == read("phi", partial_rotary_factor=0.5, rope_theta=500)
    sizes = {"n_embed": 96, "num_attention_heads": 6, "num_hidden_layers": 2, "hidden_size": None}
    assert read("bloom", hidden_size=96, n_head=6, n_layer=2) == read("bloom", **sizes, n_head=None, n_layer=None)
    named = [
        read("phi3", 64, rope_scaling=LONGROPE | kind, original_max_position_embeddings=64)
        for kind in ({"rope_type": "longrope"}, {"rope_type": None, "type": "su"})
    ]
    assert named[0] == named[1]


def test_rotation_parameters_come_before_other_fields():
    """As in transformers, where a file contradicts itself."""
    parameters = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    rotary = read("phi", rope_parameters=parameters, partial_rotary_factor=0.25, rope_theta=7.0)
    assert rotary == read("phi", rope_parameters=parameters)


def test_phi_3_has_4096_positions_where_it_does_not_say():
    options = {"max_position_embeddings": 8192, "rope_scaling": LONGROPE}
    assert read("phi3", 4096, **options) == read("phi3", 4096, **options, original_max_position_embeddings=4096)
    assert read("phi3", **options).short_context == 4096


@pytest.mark.parametrize("family", ["phi3", "starcoder2"])
def test_a_window_that_hides_nothing_is_none(family):
    windows = [read(family, sliding_window=window).blocks[0].attention.window for window in (8, 255, 256, None)]
    assert windows == [8, 255, None, None]


def test_the_name_of_a_gguf_model_changes_nothing():
    """transformers puts it into the config of a model that it read from a GGUF file, and saves it."""
    assert read("llama", _model_name_or_path="Smollm2 135M") == read("llama")
