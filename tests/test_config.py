"""Model configs are unchanged by JSON, and errors name the field, its value, and valid values."""

import json
import re
from dataclasses import replace

import pytest

from edgeformer.config import (
    AttentionConfig,
    AudioStem,
    BlockConfig,
    ClassificationHead,
    CrossAttentionConfig,
    DecoderConfig,
    DisentangledConfig,
    EncoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    MaskedLMHead,
    ModelConfig,
    NormConfig,
    PoolingHead,
    ProportionalScaling,
    RandomBlocks,
    RotaryConfig,
    Seq2SeqConfig,
    ShawConfig,
    ShortConvConfig,
    SinusoidalPositions,
    T5BiasConfig,
    TransformerXLConfig,
    YarnScaling,
)
from edgeformer.contract.tensors import CacheGeometry, KeyValueState
from edgeformer.documents import schema
from edgeformer.errors import ConfigError
from edgeformer.models import build_model

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
    assert geometry == CacheGeometry.of_attention(num_layers=5, num_kv_heads=2, head_dim=8)
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
def test_blocks_may_differ_in_what_they_keep(other):
    geometry = _model(_block(), _block(**other)).cache_geometry
    assert not geometry.is_uniform and geometry.key_value is None
    assert geometry == schema.from_json(CacheGeometry, schema.to_json(geometry))
    first, second = geometry.layers
    assert first == (KeyValueState(num_kv_heads=2, head_dim=8),)
    assert second == (KeyValueState(**{"num_kv_heads": 2, "head_dim": 8, **other}),)


def test_a_block_shares_keys_of_an_earlier_one_of_its_shape():
    geometry = _model(_block(), _block(shares=0)).cache_geometry
    assert [tensor.past for tensor in geometry.tensors()] == ["past_key_values.0.key", "past_key_values.0.value"]
    assert geometry.layers[1] == () and not geometry.is_uniform
    message = (
        r"^DecoderConfig\.blocks is .*; it must be sharing the keys and values of an earlier block that has its own"
    )
    for wrong in ({"shares": 1}, {"shares": 2}, {"shares": 0, "head_dim": 16}):
        with pytest.raises(ConfigError, match=message):
            _model(_block(), _block(**wrong))


def test_a_block_needs_attention_or_a_recurrent_layer():
    with pytest.raises(ConfigError, match=r"^BlockConfig\.attention is None; it must be set where"):
        replace(_block(), attention=None)
    conv = ShortConvConfig(channels=6, kernel_size=3, bias=False)
    geometry = _model(
        replace(_block(), recurrent=conv), replace(_block(), attention=None, recurrent=conv)
    ).cache_geometry
    assert [tensor.present for tensor in geometry.tensors()] == [
        "present.0.key", "present.0.value", "present_conv.0", "present_conv.1",
    ]  # fmt: skip
    assert geometry.recurrent and not geometry.is_uniform
    mixed = _model(_block(), replace(_block(), attention=None, recurrent=conv)).cache_geometry
    assert mixed.key_value is not None and not mixed.is_uniform
    assert geometry.elements(3, 5) == 3 * (2 * 2 * 5 * 8 + 2 * 6 * 2)
    assert geometry.elements_per_token == 2 * 2 * 8


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
            "final_norm.kind is 'group_norm'; it must be one of 'rms_norm', 'layer_norm', 'batch_norm', 'affine'.",
        ),
        (
            (*BLOCK, "feed_forward", "activation"),
            "swish",
            "blocks[0].feed_forward.activation is 'swish'; it must be one of 'identity', 'relu', 'relu_squared', "
            "'gelu', 'gelu_tanh', 'silu', 'sigmoid', 'tanh', 'xielu'.",
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
    message = r"^blocks(\[0\])? is .*; it must be (a list|of the form) (of )?\{repeat: number, block: …\}\.$"
    with pytest.raises(ConfigError, match=message):
        schema.from_json(DecoderConfig, _edited(("blocks",), blocks))


@pytest.mark.parametrize("document", [None, 1, "blocks", [], {}], ids=repr)
def test_a_document_without_blocks_is_refused(document):
    with pytest.raises(ConfigError, match=r"^a DecoderConfig needs blocks: a list of"):
        schema.from_json(DecoderConfig, document)


# Encoders and encoder-decoders.

BOTH_WAYS = {"causal": False, "rotary": None}
ACROSS = CrossAttentionConfig(num_heads=4, head_dim=8, scale=1.0, qkv_bias=True, output_bias=True)
HEADS = {
    "words": MaskedLMHead(activation="gelu", norm=NormConfig(eps=1e-5), tied=False),
    "labels": ClassificationHead(labels=("no", "yes"), pooling="first", dense="tanh", norm=NormConfig(eps=1e-5)),
    "vectors": PoolingHead(pooling="mean", normalize=True),
    "words of states": MaskedLMHead(activation=None, norm=None),
    "none": None,
}


def _encoder(*blocks, **fields):
    defaults = {"vocab_size": 100, "hidden_size": 32, "context_length": 128}
    blocks = blocks or (_block(**BOTH_WAYS),) * 2
    return EncoderConfig(blocks=blocks, final_norm=NormConfig(eps=1e-6), **(defaults | fields))


def _reader(**fields):
    """Return a decoder with cross-attention."""
    return _model(replace(_block(), cross_attention=ACROSS), **fields)


def _pair(**fields):
    return Seq2SeqConfig(**({"encoder": _encoder(), "decoder": _reader(), "shared_embedding": True} | fields))


def _any_through_text(config):
    return schema.from_json(ModelConfig, json.loads(json.dumps(schema.to_json(config))))


@pytest.mark.parametrize("head", HEADS)
def test_an_encoder_is_read_back_as_it_was(head):
    positions = LearnedPositions(rows=130, offset=2)
    block = replace(_block(**BOTH_WAYS, window=4, global_tokens=1, global_projections=True), attention_norm=False)
    config = _encoder(block, head=HEADS[head], token_types=2, position_embedding=positions)
    assert _any_through_text(config) == config
    if head != "words of states":
        config = replace(config, embedding_size=8, shared_blocks=True)
        assert _any_through_text(config) == config


@pytest.mark.parametrize("audio", [False, True])
def test_a_pair_is_read_back_as_it_was(audio):
    sinusoids = SinusoidalPositions(base=500.0, interleaved=False, to_base=True, offset=3)
    fields = {"vocab_size": 0, "audio": AudioStem(mel_bins=80)} if audio else {}
    config = _pair(encoder=_encoder(position_embedding=sinusoids, **fields), shared_embedding=not audio)
    again = _any_through_text(config)
    assert again == config
    assert isinstance(again.decoder.blocks[0].cross_attention, CrossAttentionConfig)
    assert (again.vocab_size, again.context_length) == (100, 128)


def test_the_geometry_of_a_source_is_that_of_the_cross_attention():
    assert _reader().cross_geometry == CacheGeometry.of_attention(num_layers=1, num_kv_heads=4, head_dim=8)
    assert _model().cross_geometry is None


def test_a_model_of_no_kind_is_refused_with_the_kinds():
    data = schema.to_json(_pair())
    kinds = (
        "'decoder', 'dual', 'encoder', 'naflex_vision', 'picture_encoder', 'picture_text', 'seq2seq', 'sound_text', "
        "'vision'"
    )
    message = rf"must be an object of kind \[{kinds}\]\.$"
    for kind in ("poet", 3, ...):
        data.pop("kind") if kind is ... else data.update(kind=kind)
        with pytest.raises(ConfigError, match=message):
            schema.from_json(ModelConfig, data)


def test_a_half_of_another_kind_is_refused():
    data = schema.to_json(_pair())
    with pytest.raises(ConfigError, match=r"encoder is .* it must be an object of kind \['encoder', 'vision'\]\.$"):
        schema.from_json(ModelConfig, data | {"encoder": data["encoder"] | {"kind": "decoder"}})


BUCKETS = T5BiasConfig(num_buckets=8, max_distance=16)
RELATIONS = DisentangledConfig(span=8, max_distance=16, norm=NormConfig(eps=1e-5))


def test_relations_of_disentangled_attention_are_read_back():
    config = _encoder(_block(**BOTH_WAYS, num_heads=4, num_kv_heads=4, relative=RELATIONS))
    assert _any_through_text(config) == config


@pytest.mark.parametrize(
    ("build", "field", "message"),
    [
        (
            lambda: _block(rotary=None, relative=replace(BUCKETS, bidirectional=True)),
            "AttentionConfig.relative", "bidirectional where the attention is not causal, and only there",
        ),
        (
            lambda: _block(**BOTH_WAYS, relative=BUCKETS),
            "AttentionConfig.relative", "bidirectional where the attention is not causal, and only there",
        ),
        (
            lambda: _block(**BOTH_WAYS, relative=ShawConfig(max_distance=2, values=False)),
            "AttentionConfig.causal", "True for Shaw's and Transformer-XL's relations and for random blocks",
        ),
        (
            lambda: _block(**BOTH_WAYS, relative=TransformerXLConfig()),
            "AttentionConfig.causal", "True for Shaw's and Transformer-XL's relations and for random blocks",
        ),
        (
            lambda: _block(**BOTH_WAYS, window=4, random_blocks=RandomBlocks(size=4, count=1, seed=0)),
            "AttentionConfig.causal", "True for Shaw's and Transformer-XL's relations and for random blocks",
        ),
        (
            lambda: _block(window=4, global_tokens=1, global_projections=True),
            "AttentionConfig.global_projections", "False without global tokens, and where the attention is causal",
        ),
        (
            lambda: _block(**BOTH_WAYS, window=4, global_projections=True),
            "AttentionConfig.global_projections", "False without global tokens, and where the attention is causal",
        ),
        (
            lambda: T5BiasConfig(num_buckets=3, max_distance=16, bidirectional=True),
            "T5BiasConfig.num_buckets", "4 at least",
        ),
        (
            lambda: _block(rotary=None, relative=RELATIONS),
            "AttentionConfig.relative", "disentangled only where every head has its own key and none is causal",
        ),
        (
            lambda: _block(**BOTH_WAYS, num_heads=4, num_kv_heads=2, relative=RELATIONS),
            "AttentionConfig.relative", "disentangled only where every head has its own key and none is causal",
        ),
        (lambda: replace(RELATIONS, span=1), "DisentangledConfig.span", "more than 1"),
        (lambda: replace(RELATIONS, max_distance=5), "DisentangledConfig.max_distance", "more than 5, or None"),
        (
            lambda: replace(RELATIONS, content_to_position=False, position_to_content=False),
            "DisentangledConfig.position_to_content", "True where content_to_position is False",
        ),
        (lambda: T5BiasConfig(num_buckets=1, max_distance=16), "T5BiasConfig.num_buckets", "2 at least"),
        (
            lambda: T5BiasConfig(num_buckets=16, max_distance=4, bidirectional=True),
            "T5BiasConfig.max_distance", "more than the 4 buckets of one distance each",
        ),
        (lambda: replace(ACROSS, num_heads=0), "CrossAttentionConfig.num_heads", "positive"),
        (lambda: replace(ACROSS, head_dim=-1), "CrossAttentionConfig.head_dim", "positive"),
        (
            lambda: replace(ACROSS, num_kv_heads=3),
            "CrossAttentionConfig.num_kv_heads", "a divisor of num_heads (4), or None",
        ),
        (lambda: replace(ACROSS, softcap=0.0), "CrossAttentionConfig.softcap", "positive, or None"),
        (
            lambda: replace(_block(), residual="parallel", cross_attention=ACROSS),
            "BlockConfig.residual", "serial where there is cross-attention",
        ),
        (lambda: _model(_block(**BOTH_WAYS)), "DecoderConfig.blocks", "causal in a decoder"),
        (
            lambda: _model(_block(), replace(_block(), cross_attention=ACROSS)),
            "DecoderConfig.blocks", "all with cross-attention of one geometry, or all without",
        ),
        (
            lambda: _model(*(replace(_block(), cross_attention=replace(ACROSS, num_heads=n)) for n in (2, 4))),
            "DecoderConfig.blocks", "all with cross-attention of one geometry, or all without",
        ),
        (
            lambda: build_model(_reader()),
            "DecoderConfig.blocks", "without cross-attention in a decoder that is no part of a Seq2SeqConfig",
        ),
        (lambda: AudioStem(mel_bins=0), "AudioStem.mel_bins", "positive"),
        (
            lambda: ClassificationHead(labels=(), pooling=None),
            "ClassificationHead.labels", "at least one label",
        ),
        (
            lambda: ClassificationHead(labels=("a",), pooling="mean", norm=NormConfig(eps=0.0)),
            "ClassificationHead.norm", "None without dense",
        ),
        (
            lambda: MaskedLMHead(activation=None, norm=NormConfig(eps=0.0)),
            "MaskedLMHead.norm", "None without a dense layer",
        ),
        (
            lambda: _encoder(_block(**BOTH_WAYS), _block(**BOTH_WAYS, window=4), shared_blocks=True),
            "EncoderConfig.shared_blocks", "False where blocks differ",
        ),
        (lambda: _encoder(embedding_size=0), "EncoderConfig.embedding_size", "positive, or None"),
        (
            lambda: _encoder(embedding_size=7, position_embedding=SinusoidalPositions()),
            "EncoderConfig.embedding_size", "even where positions are sinusoidal",
        ),
        (
            lambda: _encoder(vocab_size=0, audio=AudioStem(mel_bins=8), embedding_size=8),
            "EncoderConfig.embedding_size", "None for audio",
        ),
        (
            lambda: _encoder(embedding_size=8, head=HEADS["words of states"]),
            "EncoderConfig.head", "one with a dense layer where embeddings are projected",
        ),
        (lambda: _encoder(vocab_size=0), "EncoderConfig.vocab_size", "0 for audio, else positive"),
        (lambda: _encoder(audio=AudioStem(mel_bins=8)), "EncoderConfig.vocab_size", "0 for audio, else positive"),
        (
            lambda: _encoder(_block(), _block(**BOTH_WAYS)),
            "EncoderConfig.blocks", "all causal or all not",
        ),
        (
            lambda: _encoder(replace(_block(**BOTH_WAYS), cross_attention=ACROSS)),
            "EncoderConfig.blocks", "with keys and values of their own and without cross-attention in an encoder",
        ),
        (
            lambda: _encoder(vocab_size=0, audio=AudioStem(mel_bins=8), token_types=2),
            "EncoderConfig.token_types", "0 for audio",
        ),
        *(
            (
                lambda head=head: _encoder(vocab_size=0, audio=AudioStem(mel_bins=8), head=HEADS[head]),
                "EncoderConfig.head", "None for audio",
            )
            for head in ("words", "labels", "vectors")
        ),
        (
            lambda: _encoder(hidden_size=31, position_embedding=SinusoidalPositions()),
            "EncoderConfig.hidden_size", "even where positions are sinusoidal",
        ),
        (lambda: _pair(encoder=_encoder(head=HEADS["vectors"])), "Seq2SeqConfig.encoder", "without a head"),
        (lambda: _pair(encoder=_encoder(_block())), "Seq2SeqConfig.encoder", "not causal"),
        (lambda: _pair(decoder=_model()), "Seq2SeqConfig.decoder", "with cross-attention in its blocks"),
        (
            lambda: _pair(encoder=_encoder(vocab_size=99)),
            "Seq2SeqConfig.shared_embedding", "False where vocabularies or widths differ",
        ),
        (
            lambda: _pair(encoder=_encoder(embedding_size=8)),
            "Seq2SeqConfig.shared_embedding", "False where vocabularies or widths differ",
        ),
        (
            lambda: _pair(encoder=_encoder(hidden_size=64)),
            "Seq2SeqConfig.shared_embedding", "False where vocabularies or widths differ",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_of_encoders_and_their_readers_is_named(build, field, message):
    with pytest.raises(ConfigError, match=rf"(?s)^{re.escape(field)} is .*; it must be {re.escape(message)}\.$"):
        build()
