"""The encoder-decoders that every family is tested with, in the manner of `rows.py`.

FAMILIES[model_type] holds the sizes that its models share, and by name what each model adds to them. `exported` are
those that are exported too; all of them are compared in eager mode. `free_heads` get an untied head in the checkpoint,
as T5 v1.1 has one: transformers 5 cannot make such a model, but reads it.
"""

from dataclasses import dataclass
from typing import Any

VOCABULARY = 131
START = 2
"""The first token of every text."""


@dataclass(frozen=True)
class Row:
    """Random models of one family."""

    sizes: dict[str, Any]
    models: dict[str, dict[str, Any]]
    exported: tuple[str, str, str]
    free_heads: tuple[str, ...] = ()
    auto: str = "AutoModelForSeq2SeqLM"


BART_SIZES = {
    "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}  # fmt: skip

T5_SIZES = {
    "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "decoder_start_token_id": START,
}  # fmt: skip

UNEQUAL = {"encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 8}
"""Halves that have little in common."""

LED_SIZES = {name: size for name, size in BART_SIZES.items() if name != "max_position_embeddings"} | {
    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 48, "attention_window": 8,
}  # fmt: skip

T5GEMMA_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
}  # fmt: skip

FAMILIES = {
    "bart": Row(
        sizes=BART_SIZES,
        models={
            "plain": {},
            "unequal": UNEQUAL | {"scale_embedding": True, "activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "activation_function": "gelu_new"},
        },
        exported=("plain", "unequal", "untied"),
    ),
    "led": Row(
        sizes=LED_SIZES,
        models={
            "plain": {},
            "unequal": UNEQUAL | {"attention_window": [4, 8, 16], "activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "attention_window": [48, 4]},
            "narrow": {"attention_window": 4, "activation_function": "gelu_new"},
        },
        exported=("plain", "unequal", "untied"),
    ),
    "m2m_100": Row(
        sizes=BART_SIZES,
        models={
            "plain": {},
            "unequal": UNEQUAL | {"scale_embedding": False, "activation_function": "gelu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "activation_function": "silu"},
            "other-padding": {"pad_token_id": 0},
        },
        exported=("plain", "unequal", "other-padding"),
    ),
    "marian": Row(
        sizes=BART_SIZES | {"scale_embedding": True, "activation_function": "swish"},
        models={
            "plain": {},
            "two-vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 97},
            "unequal": UNEQUAL | {"scale_embedding": False, "activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48},
            "nothing-in-common": {
                "tie_word_embeddings": False, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 97,
            },
        },
        exported=("plain", "two-vocabularies", "nothing-in-common"),
    ),
    "mbart": Row(
        sizes=BART_SIZES,
        models={
            "plain": {"scale_embedding": True},
            "unequal": UNEQUAL | {"activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "activation_function": "silu"},
        },
        exported=("plain", "unequal", "untied"),
    ),
    "mt5": Row(
        sizes=T5_SIZES,
        models={
            "plain": {},
            "free-head": {"d_kv": 8, "num_decoder_layers": 1},
            "relu": {"feed_forward_proj": "relu", "layer_norm_epsilon": 1e-2, "num_heads": 2, "d_kv": 24},
        },
        exported=("plain", "free-head", "relu"),
        free_heads=("free-head",),
    ),
    "pegasus": Row(
        sizes=BART_SIZES,
        models={
            "plain": {"scale_embedding": True, "activation_function": "relu"},
            "unequal": UNEQUAL,
            "untied": {"tie_word_embeddings": False, "d_model": 48, "activation_function": "tanh"},
        },
        exported=("plain", "unequal", "untied"),
    ),
    "plbart": Row(
        sizes=BART_SIZES,
        models={
            "plain": {"scale_embedding": True},
            "unequal": UNEQUAL | {"scale_embedding": False, "activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "activation_function": "gelu_new"},
        },
        exported=("plain", "unequal", "untied"),
    ),
    "t5": Row(
        sizes=T5_SIZES,
        models={
            "plain": {},
            "v1.1": {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu", "d_kv": 24},
            "unequal": {"num_decoder_layers": 3, "num_layers": 1, "num_heads": 8, "d_kv": 8},
            "unscaled": {"tie_word_embeddings": False, "feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-2},
            "buckets": {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 10},
            "odd-buckets": {"relative_attention_num_buckets": 7, "relative_attention_max_distance": 12},
        },
        exported=("plain", "v1.1", "unequal"),
        free_heads=("v1.1",),
    ),
    "umt5": Row(
        sizes=T5_SIZES,
        models={
            "plain": {},
            "unequal": {"d_kv": 8, "num_decoder_layers": 1, "num_layers": 3},
            "relu": {"feed_forward_proj": "relu", "layer_norm_epsilon": 1e-2, "num_heads": 2, "d_kv": 24},
            "buckets": {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 10},
        },
        exported=("plain", "unequal", "relu"),
    ),
    "t5gemma": Row(
        sizes={"encoder": T5GEMMA_SIZES, "decoder": T5GEMMA_SIZES},
        models={
            "plain": {},
            "unequal": {
                "encoder": T5GEMMA_SIZES | {"num_hidden_layers": 3, "hidden_size": 48, "num_key_value_heads": 4},
                "decoder": T5GEMMA_SIZES
                | {"num_hidden_layers": 1, "num_attention_heads": 8, "attn_logit_softcapping": None, "head_dim": 8},
            },
            "untied": {
                "tie_word_embeddings": False,
                "encoder": T5GEMMA_SIZES
                | {"layer_types": ["full_attention", "sliding_attention"], "attn_logit_softcapping": None},
                "decoder": T5GEMMA_SIZES
                | {
                    "attention_bias": True, "num_key_value_heads": 1, "hidden_activation": "silu",
                    "final_logit_softcapping": None, "rms_norm_eps": 1e-2,
                },
            },
        },
        exported=("plain", "unequal", "untied"),
    ),
    # transformers does not have the transformer of 2017; its oracle is torch's.
    "transformer": Row(
        sizes={
            "model_type": "transformer", "vocab_size": VOCABULARY, "d_model": 64, "num_heads": 4, "d_ff": 96,
            "num_encoder_layers": 2, "num_decoder_layers": 2, "max_position_embeddings": 64,
        },
        models={
            "paper": {},
            "biases": {
                "attention_bias": True, "head_bias": True, "norm_eps": 1e-2, "activation": "gelu",
                "num_encoder_layers": 3, "num_decoder_layers": 1,
            },
            "apart": {
                "shared_embedding": False, "tied_head": False, "decoder_vocab_size": 97, "feed_forward_bias": False,
                "num_heads": 2, "d_model": 48,
            },
            "two-vocabularies": {"shared_embedding": False, "decoder_vocab_size": 97, "head_bias": True},
        },
        exported=("paper", "biases", "apart"),
    ),
    "whisper": Row(
        sizes={name: size for name, size in BART_SIZES.items() if name != "max_position_embeddings"}
        | {"num_mel_bins": 8, "max_source_positions": 15, "max_target_positions": 64},
        models={
            "plain": {},
            "unequal": UNEQUAL | {"scale_embedding": True, "activation_function": "relu"},
            "untied": {"tie_word_embeddings": False, "d_model": 48, "num_mel_bins": 5, "max_source_positions": 10},
        },
        exported=("plain", "unequal", "untied"),
        auto="AutoModelForSpeechSeq2Seq",
    ),
}  # fmt: skip
