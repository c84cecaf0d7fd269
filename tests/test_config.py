"""A model configuration survives JSON unchanged; what is wrong in one is named: the field, its value, what is right."""

import json
import re
from dataclasses import replace

import pytest

from edgeformer import schema
from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NormConfig,
    ProportionalScaling,
    RotaryConfig,
    YarnScaling,
)
from edgeformer.contract import CacheGeometry
from edgeformer.errors import ConfigError

SCALINGS = [
    None,
    LinearScaling(factor=2.0),
    ProportionalScaling(factor=1.0, fraction=0.25),
    Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=8192),
    YarnScaling(
        factor=4.0,
        attention_factor=1.1386,
        beta_fast=32.0,
        beta_slow=1.0,
        original_context_length=4096,
        truncate=True,
    ),
    LongRopeScaling(factors=(1.0, 1.25, 2.5, 64.1), attention_factor=1.19),
]


def _block(scaling=None, **attention):
    rotary = RotaryConfig(rotary_dim=8, base=10_000.0, interleaved=False, scaling=scaling)
    fields = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scale": 8**-0.5, "rotary": rotary}
    return BlockConfig(
        attention=AttentionConfig(**(fields | {"qkv_bias": False, "output_bias": False} | attention)),
        feed_forward=FeedForwardConfig(intermediate_size=64, activation="silu", bias=False),
        norm=NormConfig(eps=1e-5),
    )


def _model(*blocks, **fields):
    defaults = {"vocab_size": 100, "hidden_size": 32, "context_length": 128, "tied_head": True}
    return DecoderConfig(blocks=blocks or (_block(),) * 3, final_norm=NormConfig(eps=1e-6), **(defaults | fields))


def _through_text(config):
    return schema.from_json(DecoderConfig, json.loads(json.dumps(schema.to_json(config))))


def _edited(path, value=None):
    """The JSON of a valid model with one value replaced, or removed where it is None."""
    data = schema.to_json(_model(_block(SCALINGS[3])))
    *parents, last = path
    place = data
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


BLOCK = ("blocks", 0, "block")
ATTENTION = (*BLOCK, "attention")
ROTARY = (*ATTENTION, "rotary")


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.kind if scaling else "none")
def test_every_scaling_survives_json(scaling):
    config = _model(_block(scaling))
    assert _through_text(config) == config


def test_a_model_without_rotary_positions_survives_json():
    config = _model(_block(rotary=None, num_kv_heads=4))
    assert "rotary" not in json.dumps(config.to_json())
    assert _through_text(config) == config


def test_runs_of_equal_blocks_are_written_once():
    local, whole = _block(SCALINGS[1]), _block()
    config = _model(local, local, local, whole, local)
    data = config.to_json()
    assert [run["repeat"] for run in data["blocks"]] == [3, 1, 1]
    read = _through_text(config)
    assert read == config
    assert read.blocks == (local, local, local, whole, local)


def test_blocks_that_differ_in_one_field_are_not_joined():
    # Negative control of the run-length form: the smallest difference survives it.
    block = _block()
    other = replace(block, norm=NormConfig(eps=1e-5 * (1 + 1e-12)))
    read = _through_text(_model(block, other, block))
    assert [layer == block for layer in read.blocks] == [True, False, True]


def test_numbers_survive_json_bit_for_bit():
    config = _model(_block(scale=0.1 + 0.2))
    assert _through_text(config).blocks[0].attention.scale == 0.1 + 0.2


def test_a_whole_number_is_read_where_a_float_is_meant():
    config = schema.from_json(DecoderConfig, _edited((*ROTARY, "base"), 500_000))
    base = config.blocks[0].attention.rotary.base
    assert base == 500_000
    assert type(base) is float


def test_the_cache_geometry_is_that_of_the_blocks():
    geometry = _model(*[_block()] * 5).cache_geometry
    assert geometry == CacheGeometry(num_layers=5, num_kv_heads=2, head_dim=8)
    # Keys and values of 5 layers, 3 rows, 2 heads, 7 tokens, 8 elements.
    assert geometry.elements(3, 7) == 2 * 5 * 3 * 2 * 7 * 8


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _model(vocab_size=0), "DecoderConfig.vocab_size is 0; it must be positive."),
        (lambda: _model(hidden_size=-1), "DecoderConfig.hidden_size is -1; it must be positive."),
        (lambda: _model(context_length=0), "DecoderConfig.context_length is 0; it must be positive."),
        (
            lambda: _block(num_heads=0),
            "AttentionConfig.num_heads is 0; it must be positive.",
        ),
        (lambda: _block(head_dim=0), "AttentionConfig.head_dim is 0; it must be positive."),
        (
            lambda: _block(num_kv_heads=3),
            "AttentionConfig.num_kv_heads is 3; it must be a divisor of num_heads (4).",
        ),
        (
            lambda: _block(num_kv_heads=0),
            "AttentionConfig.num_kv_heads is 0; it must be a divisor of num_heads (4).",
        ),
        (
            lambda: RotaryConfig(rotary_dim=7, base=1e4, interleaved=False, scaling=None),
            "RotaryConfig.rotary_dim is 7; it must be a positive even number.",
        ),
        (
            lambda: RotaryConfig(rotary_dim=0, base=1e4, interleaved=False, scaling=None),
            "RotaryConfig.rotary_dim is 0; it must be a positive even number.",
        ),
        (
            lambda: RotaryConfig(rotary_dim=8, base=0.0, interleaved=False, scaling=None),
            "RotaryConfig.base is 0.0; it must be positive.",
        ),
        (
            lambda: Llama3Scaling(factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0, original_context_length=8192),
            "Llama3Scaling.high_freq_factor is 4.0; it must be larger than low_freq_factor.",
        ),
        (lambda: NormConfig(eps=-1e-6), "NormConfig.eps is -1e-06; it must be zero or positive."),
        (
            lambda: FeedForwardConfig(intermediate_size=0, activation="silu", bias=False),
            "FeedForwardConfig.intermediate_size is 0; it must be positive.",
        ),
    ],
)
def test_a_value_out_of_range_is_named_with_what_would_be_right(build, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        build()


def test_rotary_positions_wider_than_a_head_are_refused():
    with pytest.raises(
        ConfigError, match=r"^AttentionConfig\.rotary is .*rotary_dim=8.*no wider than head_dim \(4\)\.$"
    ):
        _block(head_dim=4)


def test_longrope_needs_one_factor_for_each_pair():
    scaling = LongRopeScaling(factors=(1.0, 2.0), attention_factor=1.0)
    with pytest.raises(
        ConfigError, match=r"^RotaryConfig\.scaling is .*; it must be given 4 factors, one for each pair\.$"
    ):
        _block(scaling)


def test_a_model_needs_a_block():
    with pytest.raises(ConfigError, match=r"^DecoderConfig\.blocks is \(\); it must be at least one block\.$"):
        DecoderConfig(
            vocab_size=1,
            hidden_size=1,
            context_length=1,
            blocks=(),
            final_norm=NormConfig(eps=0.0),
            tied_head=True,
        )


@pytest.mark.parametrize("other", [{"num_kv_heads": 4}, {"head_dim": 16}])
def test_all_blocks_have_one_cache_geometry(other):
    message = r"^DecoderConfig\.blocks is .*; it must be of one cache geometry \(num_kv_heads and head_dim\)\.$"
    with pytest.raises(ConfigError, match=message):
        _model(_block(), _block(**other))


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        (("colour",), "DecoderConfig"),
        (("final_norm", "colour"), "NormConfig"),
        ((*BLOCK, "colour"), "BlockConfig"),
        ((*ATTENTION, "colour"), "AttentionConfig"),
        ((*ROTARY, "scaling", "colour"), "Llama3Scaling"),
    ],
)
def test_an_unknown_field_is_named_with_its_place(path, owner):
    place = ".".join(str(key) for key in path).replace("blocks.0.block", "blocks[0]")
    message = f"^{re.escape(place)} is not a field of {owner}; it has "
    with pytest.raises(ConfigError, match=message):
        schema.from_json(DecoderConfig, _edited(path, "blue"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("vocab_size",), "vocab_size is missing; DecoderConfig requires it."),
        (("final_norm", "eps"), "final_norm.eps is missing; NormConfig requires it."),
        ((*ATTENTION, "scale"), "blocks[0].attention.scale is missing; AttentionConfig requires it."),
        (
            (*ROTARY, "scaling", "factor"),
            "blocks[0].attention.rotary.scaling.factor is missing; Llama3Scaling requires it.",
        ),
    ],
)
def test_a_missing_field_is_named_with_its_place(path, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        schema.from_json(DecoderConfig, _edited(path))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("vocab_size",), "100", "vocab_size is '100'; it must be of type int."),
        (("vocab_size",), 100.0, "vocab_size is 100.0; it must be of type int."),
        (("vocab_size",), True, "vocab_size is True; it must be of type int."),
        (("tied_head",), 1, "tied_head is 1; it must be of type bool."),
        (("final_norm",), [], "final_norm is []; it must be an object with the fields of NormConfig."),
        (("final_norm", "eps"), True, "final_norm.eps is True; it must be of type float."),
        (
            ("final_norm", "kind"),
            "group_norm",
            "final_norm.kind is 'group_norm'; it must be one of 'rms_norm', 'layer_norm', 'batch_norm'.",
        ),
        (
            (*BLOCK, "feed_forward", "activation"),
            "swish",
            "blocks[0].feed_forward.activation is 'swish'; it must be one of 'identity', 'relu', 'relu_squared', "
            "'gelu', 'gelu_tanh', 'silu', 'sigmoid', 'tanh'.",
        ),
        (
            (*ROTARY, "scaling"),
            {"kind": "ntk", "factor": 2.0},
            "blocks[0].attention.rotary.scaling is {'kind': 'ntk', 'factor': 2.0}; it must be an object of kind "
            "['linear', 'llama3', 'longrope', 'proportional', 'yarn'].",
        ),
        (
            (*ROTARY, "scaling"),
            {"kind": "longrope", "factors": 2.0, "attention_factor": 1.0},
            "blocks[0].attention.rotary.scaling.factors is 2.0; it must be a list.",
        ),
        (
            (*ROTARY, "scaling"),
            {"kind": "longrope", "factors": [1.0, "2"], "attention_factor": 1.0},
            "blocks[0].attention.rotary.scaling.factors[1] is '2'; it must be of type float.",
        ),
        pytest.param(
            (*ROTARY, "scaling"),
            {"kind": []},
            "blocks[0].attention.rotary.scaling is {'kind': []}; it must be an object of kind "
            "['linear', 'llama3', 'longrope', 'proportional', 'yarn'].",
        ),
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(path, value, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        schema.from_json(DecoderConfig, _edited(path, value))


def test_a_value_out_of_range_is_found_in_json_too():
    with pytest.raises(
        ConfigError, match=r"^AttentionConfig\.num_kv_heads is 3; it must be a divisor of num_heads \(4\)\.$"
    ):
        schema.from_json(DecoderConfig, _edited((*ATTENTION, "num_kv_heads"), 3))


@pytest.mark.parametrize(
    "blocks",
    [
        "",
        3,
        {"repeat": 1},
        [1],
        [{"repeat": 2}],
        [{"block": {}}],
        [{"repeat": "2", "block": {}}],
        [["repeat", "block"]],
    ],
    ids=repr,
)
def test_blocks_of_another_form_are_refused(blocks):
    message = r"^a DecoderConfig needs blocks: a list of \{repeat: number, block: \{…\}\}\.$"
    if blocks == "":
        message = r"^DecoderConfig\.blocks is \(\); it must be at least one block\.$"
    with pytest.raises(ConfigError, match=message):
        schema.from_json(DecoderConfig, _edited(("blocks",), blocks))


@pytest.mark.parametrize("document", [None, 1, "blocks", [], {}], ids=repr)
def test_a_document_without_blocks_is_refused(document):
    with pytest.raises(ConfigError, match=r"^a DecoderConfig needs blocks: a list of"):
        schema.from_json(DecoderConfig, document)
