"""Families of encoder-decoders read config.json files, and refuse by name what they do not support.

Well-known checkpoints were typed from memory, as transformers 4 wrote them. Each leads to the number of parameters that
its hub page is remembered to state, which supports them.
"""

import json
import math

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassFieldValidationError
from seq2seq_rows import FAMILIES, T5GEMMA_SIZES
from slow_rows import slow_unless

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.errors import ConfigError
from edgeformer.families import read_model_config


def read(family, context_length=None, **options):
    return read_model_config({"model_type": family} | FAMILIES[family].sizes | options, context_length)[1]


BARTS = ["bart", "m2m_100", "marian", "mbart", "pegasus", "plbart"]
UNKNOWN = [(family, {"normalize_between": True}, f"{family} family does not know: normalize_b") for family in FAMILIES]
LIKE_BART = [
    case
    for family in [*BARTS, "led", "whisper"]
    for case in (
        (family, {"activation_function": "mish"}, "activation_function = 'mish', which is not supported here; supp"),
        (family, {"decoder_attention_heads": 5}, "has 5 heads, which do not divide the hidden size, 64"),
        (family, {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
        (family, {"is_encoder_decoder": False}, "is_encoder_decoder = False, which is not .*supported: True"),
        (family, {"num_hidden_layers": 3}, "num_hidden_layers = 3, which is not supported here; supported: 2"),
        (family, {"decoder_layers": 0}, "DecoderConfig.blocks is .*; it must be at least one block"),
        (family, {"d_model": None}, f"config.json has no d_model; a {family} model requires it"),
        (family, {"quantization_config": {"bits": 4}}, "does not know: quantization_config = {'bits': 4}"),
    )
]
REFUSALS = [
    *UNKNOWN,
    *LIKE_BART,
    ("bart", {"decoder_vocab_size": 97}, "fields that the bart family does not know: decoder_vocab_size = 97"),
    ("led", {"attention_window": 7}, "attention_window = 7; windows are positive even numbers"),
    ("led", {"attention_window": [8]}, "attention_window of 1 layers and num_hidden_layers = 2"),
    ("led", {"scale_embedding": True}, "fields that the led family does not know: scale_embedding = True"),
    ("m2m_100", {"d_model": 63, "encoder_attention_heads": 3, "decoder_attention_heads": 3}, "even where positions"),
    ("m2m_100", {"pad_token_id": None}, "config.json has no pad_token_id; a m2m_100 model requires it"),
    ("m2m_100", {"num_experts": 8}, "fields that the m2m_100 family does not know: num_experts = 8"),
    ("marian", {"decoder_vocab_size": 97}, "decoder_vocab_size = 97, which is not supported here; supported: 131"),
    ("mt5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'gated-mish', which is not supported here"),
    ("t5", {"feed_forward_proj": "gated"}, "feed_forward_proj = 'gated', which is not supported here"),
    ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder = False, which is not .*supported: True"),
    ("t5", {"relative_attention_num_buckets": 3}, "num_buckets is 3; it must be 4 at least"),
    ("t5", {"relative_attention_max_distance": 2}, "max_distance is 2; it must be more than the"),
    *(
        ("t5gemma", {half: T5GEMMA_SIZES | changed}, message)
        for half, changed, message in (
            ("decoder", {"is_decoder": False}, "is_decoder = False, which is not supported here; supported: True"),
            ("decoder", {"cross_attention_hidden_size": 32}, "cross_attention_hidden_size = 32, which is not supp"),
            ("encoder", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
            ("encoder", {"layer_types": ["full_attention"]}, "has layer_types of 1 layers and num_hidden_layers = 2"),
            ("encoder", {"hidden_activation": "mish"}, "hidden_activation = 'mish', which is not supported here"),
            ("decoder", {"use_qk_norm": True}, "fields that the t5_gemma_module family does not know: use_qk_norm"),
            ("decoder", {"attn_logit_softcapping": -1.0}, "softcap is -1.0; it must be positive, or None"),
        )
    ),
    ("t5gemma", {"encoder": None}, "config.json has no encoder; a t5gemma model requires it"),
    ("transformer", {"activation": "mish"}, "activation = 'mish', which is not supported here; supported: gelu"),
    ("transformer", {"num_heads": 5}, "has 5 heads, which do not divide the hidden size, 64"),
    ("transformer", {"decoder_vocab_size": 97}, "shared_embedding is True; it must be False where vocabularies"),
    ("transformer", {"norm_eps": -1.0}, "NormConfig.eps is -1.0; it must be zero or positive"),
    ("transformer", {"max_position_embeddings": None}, "has no max_position_embeddings; a transformer model requires"),
    ("umt5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'gated-mish', which is not supported here"),
    ("umt5", {"is_encoder_decoder": False}, "is_encoder_decoder = False, which is not .*supported: True"),
    ("umt5", {"relative_attention_num_buckets": 3}, "num_buckets is 3; it must be 4 at least"),
    ("whisper", {"num_mel_bins": 0}, "AudioStem.mel_bins is 0; it must be positive"),
    ("whisper", {"max_source_positions": 0}, "context_length is 0; it must be positive"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "options", "message"), REFUSALS)
def test_what_is_not_computed_is_refused_by_name(family, options, message):
    with pytest.raises(ConfigError, match=message):
        read(family, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_cross_attention": True}, "add_cross_attention = True, which is not supported here; supported: False"),
        ({"pad_token_id": 2}, "pad_token_id = 2, which is not supported here; supported: 0, 1, None"),
        ({"num_hidden_layers": 3}, "num_hidden_layers = 3, which is not supported here; supported: 2"),
        ({"encoder_layers": 3}, "fields that the xglm family does not know: encoder_layers = 3"),
    ],
)
def test_what_xglm_does_not_compute_is_refused_by_name(options, message):
    sizes = {"vocab_size": 131, "d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4}
    data = {"model_type": "xglm", "max_position_embeddings": 64} | sizes
    with pytest.raises(ConfigError, match=message):
        read_model_config(data | options)


@pytest.mark.parametrize("family", [*BARTS, "transformer", "whisper"])
@pytest.mark.parametrize("length", [0, -1, 65])
def test_a_context_that_the_model_does_not_have_is_refused(family, length):
    with pytest.raises(ConfigError, match=rf"--context-length is {length}; this model has positions 1 to 64"):
        read(family, length)


def test_nothing_in_t5_ends_at_a_position():
    assert read("t5").context_length == 512
    assert read("t5", 5000).encoder.context_length == 5000
    with pytest.raises(ConfigError, match="--context-length is 0; it must be positive"):
        read("t5", 0)


@pytest.mark.parametrize(("asked", "lengths"), [(None, (64, 48)), (64, (64, 48)), (50, (50, 48)), (20, (20, 20))])
def test_the_target_of_led_has_at_most_its_own_positions(asked, lengths):
    config = read("led", asked)
    assert (config.encoder.context_length, config.decoder.context_length) == lengths
    assert (config.encoder.position_embedding.rows, config.decoder.position_embedding.rows) == (64, 48)


def test_a_shorter_context_is_of_texts_not_of_recordings():
    shorter = read("bart", 32)
    assert (shorter.encoder.context_length, shorter.decoder.context_length) == (32, 32)
    assert shorter.decoder.position_embedding.rows == 64 + 2  # as the checkpoint has them
    whisper = read("whisper", 32)
    assert (whisper.encoder.context_length, whisper.decoder.context_length) == (15, 32)


OLD = {
    "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "classif_dropout": 0.1, "classifier_dropout": 0.0, "decoder_layerdrop": 0.0,
    "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True, "encoder_layerdrop": 0.0, "init_std": 0.02,
    "forced_eos_token_id": 2, "is_encoder_decoder": True, "length_penalty": 1.0, "max_length": 62, "min_length": 11,
    "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True, "num_beams": 4,
    "output_past": True, "prefix": " ", "static_position_embeddings": False, "transformers_version": "4.20.0",
}  # fmt: skip
"""Return the fields of an old config.json that are not sizes."""


def like_bart(model_type, width, layers, heads, inner, **rest):
    both = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    sizes = {f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in both.items()}
    return OLD | {"model_type": model_type, "d_model": width, "num_hidden_layers": layers} | sizes | rest


def like_t5(model_type, vocab_size, inner, layers, heads, **rest):
    sizes = {"vocab_size": vocab_size, "d_model": 512, "d_kv": 64, "d_ff": inner, "num_layers": layers}
    also = {"num_decoder_layers": layers, "num_heads": heads, "is_encoder_decoder": True, "dropout_rate": 0.1}
    return {"model_type": model_type, "n_positions": 512, "layer_norm_epsilon": 1e-6} | sizes | also | rest


WHISPER = {
    "max_source_positions": 1500, "max_target_positions": 448, "suppress_tokens": [1, 2], "apply_spec_augment": False,
    "begin_suppress_tokens": [220, 50257], "forced_decoder_ids": [[1, 50259]], "median_filter_width": 7,
}  # fmt: skip
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer"}
GEMMA_2B = {
    "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "dropout_rate": 0.0,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
    "intermediate_size": 9216, "layer_types": ["sliding_attention", "full_attention"] * 13,
    "max_position_embeddings": 8192, "model_type": "t5_gemma_module", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "sliding_window": 4096, "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
# By name: the config, and its parameters without final_logits_bias and computed positions.
CHECKPOINTS = {
    "Helsinki-NLP/opus-mt-en-de": (
        like_bart(
            "marian", 512, 6, 8, 2048, vocab_size=58101, decoder_vocab_size=58101, max_position_embeddings=512,
            scale_embedding=True, share_encoder_decoder_embeddings=True, activation_function="swish",
            bad_words_ids=[[58100]], pad_token_id=58100, static_position_embeddings=True, normalize_embedding=False,
        ),
        73_886_208,
    ),
    "allenai/led-base-16384": (
        like_bart(
            "led", 768, 6, 12, 3072, vocab_size=50265, max_encoder_position_embeddings=16384,
            max_decoder_position_embeddings=1024, attention_window=[1024] * 6, attention_probs_dropout_prob=0.1,
        ),
        151_213_824,  # and 10,630,656 of the projections of global tokens
    ),
    "facebook/bart-base": (
        like_bart("bart", 768, 6, 12, 3072, vocab_size=50265, max_position_embeddings=1024), 139_420_416
    ),
    "facebook/bart-large": (
        like_bart("bart", 1024, 12, 16, 4096, vocab_size=50265, max_position_embeddings=1024), 406_291_456
    ),
    "facebook/m2m100_418M": (
        like_bart("m2m_100", 1024, 12, 16, 4096, vocab_size=128112, max_position_embeddings=1024), 483_905_536
    ),
    "facebook/mbart-large-50": (
        like_bart("mbart", 1024, 12, 16, 4096, vocab_size=250054, max_position_embeddings=1024), 610_879_488
    ),
    "facebook/nllb-200-distilled-600M": (
        like_bart(
            "m2m_100", 1024, 12, 16, 4096, vocab_size=256206, max_position_embeddings=1024,
            tokenizer_class="NllbTokenizer", max_length=200,
        ),
        615_073_792,
    ),
    "google/flan-t5-small": (like_t5("t5", 32128, 1024, 8, 6, **V1_1), 76_961_152),
    "google/mt5-small": (like_t5("mt5", 250112, 1024, 8, 6, **V1_1), 300_176_768),
    "google/pegasus-xsum": (
        like_bart(
            "pegasus", 1024, 16, 16, 4096, vocab_size=96103, max_position_embeddings=512, scale_embedding=True,
            activation_function="relu", extra_pos_embeddings=1, force_bos_token_to_be_generated=False,
        ),
        568_699_904,
    ),
    "google/t5gemma-2b-2b-prefixlm": (
        {
            "model_type": "t5gemma", "architectures": ["T5GemmaForConditionalGeneration"], "dropout_rate": 0.0,
            "classifier_dropout_rate": 0.0, "encoder": GEMMA_2B, "is_encoder_decoder": True, "vocab_size": 256000,
            "decoder": GEMMA_2B | {"cross_attention_hidden_size": 2304, "is_decoder": True}, "pad_token_id": 0,
        },
        5_596_853_760,
    ),
    "openai/whisper-large-v3": (
        like_bart("whisper", 1280, 32, 20, 5120, vocab_size=51866, num_mel_bins=128, **WHISPER), 1_543_490_560
    ),
    "openai/whisper-tiny": (
        like_bart("whisper", 384, 4, 6, 1536, vocab_size=51865, num_mel_bins=80, **WHISPER), 37_760_640
    ),
    "google/umt5-small": (
        like_t5("umt5", 256384, 1024, 8, 6, scalable_attention=True, **V1_1), 306_601_984
    ),
    "uclanlp/plbart-base": (
        like_bart(
            "plbart", 768, 6, 12, 3072, vocab_size=50005, max_position_embeddings=1024, scale_embedding=True,
        ),
        139_220_736,
    ),
    "t5-small": (like_t5("t5", 32128, 2048, 6, 8, task_specific_params={"summarization": {}}), 60_506_624),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_well_known_checkpoint_has_its_parameters(name):
    data, expected = CHECKPOINTS[name]
    family, config = read_model_config(data)
    shapes = parameter_shapes(config)
    shapes.pop("decoder.head.bias", None)
    assert sum(map(math.prod, shapes.values())) == expected
    assert all(family.places(shapes).values())


def rewritten(config):
    """Return the config.json that transformers 5 writes after reading this one."""
    return json.loads(transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config).to_json_string())


# transformers 5 always writes that T5 is tied; when it reads, the checkpoint decides.
@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if "t5-" not in name])
def test_what_transformers_5_makes_of_it_means_the_same(name):
    data, _ = CHECKPOINTS[name]
    assert read_model_config(rewritten(data))[1] == read_model_config(data)[1]


FAST = {"bart", "t5", "whisper"}


@pytest.mark.parametrize(
    "family",
    slow_unless(FAST, [name for name in FAMILIES if name != "transformer"]),
)
def test_an_absent_or_null_field_means_what_it_does_in_hf(family):
    """A field that is left out or null is refused, or read as transformers does."""
    compared = set()
    for options in FAMILIES[family].models.values():
        whole = rewritten({"model_type": family} | FAMILIES[family].sizes | options)
        for name in whole.keys() - {"model_type"}:
            without = {key: value for key, value in whole.items() if key != name}
            for changed in (without, without | {name: None}):
                try:
                    ours, theirs = read_model_config(changed)[1], rewritten(changed)
                except (ConfigError, StrictDataclassFieldValidationError):  # we refuse it, or transformers does
                    continue
                assert ours == read_model_config(theirs)[1], (name, changed.get(name, "absent"))
                compared.add(name)
    assert len(compared) >= 8, compared


def test_whether_t5_divides_its_logits_is_read():
    scales = [
        read("t5", **options).decoder.logit_scale
        for options in ({}, {"tie_word_embeddings": False}, {"scale_decoder_outputs": False})
    ]
    assert scales == [1 / 8, 1.0, 1.0]
    untied = read("t5", tie_word_embeddings=False, scale_decoder_outputs=True).decoder
    assert (untied.tied_head, untied.logit_scale) == (False, 1 / 8)
    assert read("mt5").decoder.logit_scale == 1.0
    assert [read("umt5", tie_word_embeddings=tied).decoder.logit_scale for tied in (True, False)] == [1 / 8, 1.0]


def test_the_transformer_of_2017_is_that_of_its_paper():
    base = {"vocab_size": 37000, "d_model": 512, "num_heads": 8, "d_ff": 2048}
    config = read("transformer", **base, num_encoder_layers=6, num_decoder_layers=6, max_position_embeddings=512)
    assert config.shared_embedding and config.decoder.tied_head and not config.decoder.head_bias
    assert config.decoder.embedding_scale == 512**0.5
    block = config.decoder.blocks[0]
    assert (block.norm_placement, block.attention.qkv_bias, block.feed_forward.bias) == ("post", False, True)
    assert (block.feed_forward.activation, block.feed_forward.gated, config.decoder.final_norm) == ("relu", False, None)
    assert config.decoder.position_embedding.interleaved and not config.decoder.position_embedding.to_base
