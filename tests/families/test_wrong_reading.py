"""Our decoder over a checkpoint computes what transformers computes, in float64; one wrong detail shows.

These are the negative controls of families with latent attention, experts and state spaces. Nothing is exported here.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from rows import FAMILIES, VOCABULARY

from edgeformer.checkpoints.found_model import find_model
from edgeformer.checkpoints.weights import CheckpointWeights
from edgeformer.config import ExpertsConfig
from edgeformer.export.reference.reference import Reference
from edgeformer.families import read_model_config
from edgeformer.models.model_spec import model_spec_of

TOKENS = torch.randint(0, VOCABULARY, (2, 21), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def folders(make_model):
    """Return a function that returns a folder and the float64 logits of transformers for it; both are kept."""
    kept = {}

    def of(family, name):
        if (family, name) not in kept:
            folder = make_model(family, seed=5, **(FAMILIES[family].sizes | FAMILIES[family].models[name]))
            theirs = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
            )
            with torch.no_grad():
                kept[family, name] = folder, theirs(TOKENS).logits
        return kept[family, name]

    return of


def error(folder, expected, change=lambda config: config, weights_change=lambda weights, config: {}):
    """Return the relative error of our logits, with a changed config and with some weights replaced."""
    family, config = read_model_config(find_model(str(folder)).hf_config)
    weights = CheckpointWeights(folder, family, config)
    weights = {**weights, **weights_change(weights, config)}
    logits, _ = Reference(model_spec_of(change(config)), weights).run(TOKENS)
    return ((logits - expected).abs().max() / expected.abs().max()).item()


def with_attention(**fields):
    return lambda config: replace(
        config,
        blocks=tuple(replace(block, attention=replace(block.attention, **fields)) for block in config.blocks),
    )


def halves(config):
    rotary = replace(config.attentions[0].rotary, interleaved=not config.attentions[0].rotary.interleaved)
    return with_attention(rotary=rotary)(config)


def without_temperature(config):
    return with_attention(scale=config.attentions[0].head_dim ** -0.5)(config)


def with_experts(change, **fields):
    """Return a change of the fields of every mixture of experts, or of their routers."""
    return lambda config: replace(
        config,
        blocks=tuple(
            replace(block, feed_forward=change(block.feed_forward, **fields))
            if isinstance(block.feed_forward, ExpertsConfig)
            else block
            for block in config.blocks
        ),
    )


def router(experts, **fields):
    return replace(experts, router=replace(experts.router, **fields))


def shared_part_last(weights, config):
    """Return the projections of queries as the checkpoint has them."""
    attention = config.attentions[0]
    return {
        name: weight.unflatten(0, (attention.num_heads, -1)).roll(-attention.latent.shared_dim, 1).flatten(0, 1)
        for name, weight in weights.items()
        if name.endswith("latent.query.weight")
    }


LATENT = [
    (family, name)
    for family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
    for name in FAMILIES[family].models
    if name != "longrope"
]


@pytest.mark.parametrize(("family", "name"), LATENT)
def test_latent_attention_is_that_of_transformers(folders, family, name):
    assert error(*folders(family, name)) < 2e-6  # transformers computes norms and angles in float32


@pytest.mark.parametrize("change", [halves, without_temperature])
def test_the_comparison_sees_a_wrong_config_of_latent_attention(folders, change):
    assert error(*folders("youtu", "yarn"), change) > 1e-3


@pytest.mark.parametrize("name", ["plain", "halves"])
def test_the_comparison_sees_where_the_shared_part_of_queries_is(folders, name):
    assert error(*folders("youtu", name), weights_change=shared_part_last) > 1e-3


EXPERTS = [
    (family, name)
    for family in (
        "dots1",
        "ernie4_5_moe",
        "flex_olmo",
        "glm4_moe",
        "gpt_oss",
        "granitemoe",
        "granitemoeshared",
        "lfm2_moe",
        "llama4_text",
        "phimoe",
        "qwen2_moe",
    )
    for name in FAMILIES[family].models
    if name != "longrope"
]


@pytest.mark.parametrize(("family", "name"), EXPERTS)
def test_experts_are_those_of_transformers(folders, family, name):
    assert error(*folders(family, name)) < 2e-6


@pytest.mark.parametrize(
    ("family", "name", "fields"),
    [
        ("deepseek_v2", "groups", {"groups": 1, "groups_per_token": 1}),
        ("deepseek_v2", "groups", {"scale": 1.0}),
        ("deepseek_v3", "groups", {"groups": 1, "groups_per_token": 1}),
        ("deepseek_v3", "groups", {"scoring": "softmax"}),
        ("deepseek_v3", "groups", {"normalized": False, "sum_epsilon": 0.0}),
        ("ernie4_5_moe", "biases", {"sum_floor": 0.0}),
        ("gpt_oss", "layer-types", {"normalized": False}),
        ("lfm2_moe", "without-biases", {"scale": 1.0}),
        ("llama4_text", "experts", {"scoring": "softmax"}),
        ("qwen2_moe", "normalized", {"normalized": False}),
        ("qwen2_moe", "windows", {"normalized": True}),
        ("granitemoe", "biases", {"normalized": False}),
        ("phimoe", "biases", {"jitter": 0.01}),
    ],
)
def test_the_comparison_sees_a_wrong_router(folders, family, name, fields):
    assert error(*folders(family, name), with_experts(router, **fields)) > 1e-3


def network(experts, **fields):
    return replace(experts, expert=replace(experts.expert, **fields))


@pytest.mark.parametrize("fields", [{"limit": None}, {"beta": 1.0}, {"up_offset": 0.0}])
def test_the_comparison_sees_a_wrong_network_of_experts(folders, fields):
    assert error(*folders("gpt_oss", "layer-types"), with_experts(network, **fields)) > 1e-3


def in_wrong_order(weights, config):
    return {name: weight.flip(0) for name, weight in weights.items() if ".experts." in name}


def exchanged(weights, config):
    """Return the gates of all networks as their second factors, and the other way round."""
    other = {"gate": "up", "up": "gate"}
    names = [name for name in weights if name.split(".")[-2] in other and "feed_forward" in name]
    return {
        name: weights[name.replace(f".{part}.", f".{other[part]}.")]
        for name in names
        for part in other
        if f".{part}." in name
    }


def without_choice_biases(weights, config):
    return {name: weight * 0 for name, weight in weights.items() if name.endswith("choice_bias")}


def without_shared_network(weights, config):
    return {name: weight * 0 for name, weight in weights.items() if ".shared.down." in name}


@pytest.mark.parametrize(
    ("family", "name", "change"),
    [
        ("deepseek_v2", "lite", in_wrong_order),
        ("deepseek_v3", "yarn", without_choice_biases),
        ("ernie4_5_moe", "biases", without_choice_biases),
        ("flex_olmo", "biases", in_wrong_order),
        ("glm4_moe", "groups", without_choice_biases),
        ("lfm2_moe", "not-normalized", without_choice_biases),
        ("llama4_text", "experts", in_wrong_order),
        ("llama4_text", "every-second-layer", without_shared_network),
        ("gpt_oss", "layer-types", exchanged),
        ("gpt_oss", "plain-rotary", in_wrong_order),
        ("granitemoe", "multipliers", in_wrong_order),
        ("granitemoe", "multipliers", exchanged),
        ("granitemoeshared", "all-experts", without_shared_network),
        ("granitemoeshared", "relu", exchanged),
        ("phimoe", "window", in_wrong_order),
        ("qwen2_moe", "dense-layers", in_wrong_order),
        ("qwen2_moe", "windows", without_shared_network),
    ],
)
def test_the_comparison_sees_wrong_weights_of_experts(folders, family, name, change):
    assert error(*folders(family, name), weights_change=change) > 1e-3


def with_recurrent(**fields):
    """Return a change of the fields of every recurrent layer."""
    return lambda config: replace(
        config,
        blocks=tuple(
            replace(block, recurrent=replace(block.recurrent, **fields)) if block.recurrent else block
            for block in config.blocks
        ),
    )


def without_residual_scale(config):
    return replace(config, blocks=tuple(replace(block, residual_scale=1.0) for block in config.blocks))


def without_rotary(config):
    return replace(
        config,
        blocks=tuple(
            replace(block, attention=replace(block.attention, rotary=None)) if block.attention else block
            for block in config.blocks
        ),
    )


def without_skip(weights, config):
    """Return the products of inputs and D, which bypass the state, as zeros."""
    return {name: weight * 0 for name, weight in weights.items() if name.endswith(".skip")}


STATE_SPACES = [(family, name) for family in ("granitemoehybrid", "mamba2") for name in FAMILIES[family].models]


@pytest.mark.parametrize(("family", "name"), STATE_SPACES)
def test_state_spaces_are_those_of_transformers(folders, family, name):
    assert error(*folders(family, name)) < 1e-5  # transformers computes norms, steps and states in float32


@pytest.mark.parametrize(
    ("family", "name", "change"),
    [
        ("granitemoehybrid", "trained-steps", with_recurrent(norm_groups=1)),
        ("granitemoehybrid", "trained-steps", without_residual_scale),
        ("granitemoehybrid", "experts", with_recurrent(max_step=None)),
        ("granitemoehybrid", "experts", without_rotary),
        ("granitemoehybrid", "attention", without_rotary),
        ("mamba2", "trained-steps", with_recurrent(norm_groups=1)),
        ("mamba2", "steps", with_recurrent(min_step=0.0)),
        ("mamba2", "widths", with_recurrent(norm_before_gate=True)),
    ],
)
def test_the_comparison_sees_a_wrong_config_of_state_spaces(folders, family, name, change):
    assert error(*folders(family, name), change) > 1e-3


@pytest.mark.parametrize(
    ("family", "name", "change"),
    [
        ("granitemoehybrid", "trained-steps", exchanged),
        ("granitemoehybrid", "trained-steps", without_skip),
        ("granitemoehybrid", "experts", without_shared_network),
        ("mamba2", "trained-steps", without_skip),
    ],
)
def test_the_comparison_sees_wrong_weights_of_state_spaces(folders, family, name, change):
    assert error(*folders(family, name), weights_change=change) > 1e-3
