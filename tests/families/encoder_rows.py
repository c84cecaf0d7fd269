"""The models that every family of encoders is tested with: random ones of transformers' classes, with varied options.

ENCODERS[model_type] holds `sizes`, which all models of the family share, and by name what each model adds to them:
options of its config, with `head` for the class, and `pooling` for folders of sentence-transformers.
"""

from dataclasses import dataclass
from typing import Any

VOCABULARY = 131


@dataclass(frozen=True)
class EncoderRow:
    """Random models of one family."""

    sizes: dict[str, Any]
    models: dict[str, dict[str, Any]]


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 48,
}  # fmt: skip
"""Sizes under the names that most families use."""

MASKED, TEXT, TOKEN = "masked_lm", "sequence_classification", "token_classification"
ANSWER = "question_answering"

ROBERTA_SIZES = SIZES | {"type_vocab_size": 1, "max_position_embeddings": 50}
"""Sizes where the first two positions are not those of tokens."""

ENCODERS = {
    "bert": EncoderRow(
        sizes=SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "untied": {"head": MASKED, "tie_word_embeddings": False, "hidden_act": "silu", "layer_norm_eps": 1e-2},
            "text-labels": {"head": TEXT, "num_labels": 5, "type_vocab_size": 3, "hidden_act": "relu"},
            "token-labels": {"head": TOKEN, "num_labels": 4, "type_vocab_size": 1, "hidden_act": "gelu_new"},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "num_attention_heads": 8},
        },
    ),
    "roberta": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED, "hidden_act": "relu"},
            "text-labels": {"head": TEXT, "num_labels": 3, "pad_token_id": 0, "layer_norm_eps": 1e-2},
            "token-labels": {"head": TOKEN, "type_vocab_size": 2, "num_labels": 7},
            "untied": {"head": MASKED, "tie_word_embeddings": False},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "xlm-roberta": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 1},
            "sentences": {"pooling": {"mode": "cls", "normalize": False}},
            "answers": {"head": ANSWER},
        },
    ),
    "xlm-roberta-xl": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED, "hidden_act": "gelu_new"},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 2, "num_attention_heads": 8},
            "token-labels": {"head": TOKEN, "num_labels": 4, "layer_norm_eps": 1e-2, "pad_token_id": 0},
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "num_hidden_layers": 2},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "camembert": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 2, "hidden_act": "relu"},
            "token-labels": {"head": TOKEN, "num_labels": 5, "pad_token_id": 0},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "data2vec-text": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED, "layer_norm_eps": 1e-5},
            "text-labels": {"head": TEXT, "num_labels": 2, "num_attention_heads": 2},
            "token-labels": {"head": TOKEN, "num_labels": 3, "type_vocab_size": 2},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "roberta-prelayernorm": EncoderRow(
        sizes=ROBERTA_SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 2, "hidden_act": "silu"},
            "token-labels": {"head": TOKEN, "num_labels": 4, "layer_norm_eps": 1e-2},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "megatron-bert": EncoderRow(
        sizes=SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 1, "hidden_act": "gelu_new"},
            "token-labels": {"head": TOKEN, "num_labels": 4, "num_attention_heads": 2},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "ernie": EncoderRow(
        sizes=SIZES,
        models={
            "masked-lm": {"head": MASKED, "type_vocab_size": 4, "hidden_act": "relu"},
            "text-labels": {"head": TEXT, "num_labels": 3},
            "token-labels": {"head": TOKEN, "num_labels": 4, "type_vocab_size": 1},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "esm": EncoderRow(
        sizes=SIZES | {"max_position_embeddings": 50, "pad_token_id": 1, "mask_token_id": 32},
        models={
            "masked-lm": {"head": MASKED, "position_embedding_type": "rotary", "token_dropout": True},
            "text-labels": {"head": TEXT, "num_labels": 3, "token_dropout": True, "emb_layer_norm_before": True},
            "token-labels": {"head": TOKEN, "num_labels": 4, "layer_norm_eps": 1e-2},
            "untied": {
                "head": MASKED, "position_embedding_type": "rotary", "rope_theta": 500.0, "tie_word_embeddings": False,
            },
            "sentences": {
                "pooling": {"mode": "mean", "normalize": True}, "position_embedding_type": "rotary",
                "token_dropout": True, "num_hidden_layers": 2,
            },
        },
    ),
    "mobilebert": EncoderRow(
        sizes=SIZES | {"embedding_size": 24, "intra_bottleneck_size": 32, "num_hidden_layers": 2},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "num_feedforward_networks": 2, "hidden_act": "gelu"},
            "token-labels": {"head": TOKEN, "num_labels": 4, "use_bottleneck_attention": True},
            "answers": {"head": ANSWER, "num_feedforward_networks": 1, "classifier_activation": False},
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "trigram_input": False},
        },
    ),
    "nomic_bert": EncoderRow(
        sizes=SIZES,
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "head_dim": 24, "hidden_act": "gelu"},
            "token-labels": {"head": TOKEN, "num_labels": 4, "type_vocab_size": 1},
            "sentences": {
                "pooling": {"mode": "mean", "normalize": True}, "num_attention_heads": 8,
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            },
        },
    ),
    "jina_embeddings_v3": EncoderRow(
        sizes=SIZES | {"pad_token_id": 1},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 2, "hidden_act": "relu"},
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            },
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "num_attention_heads": 2},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "gte": EncoderRow(
        sizes=SIZES | {"pad_token_id": 1},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "type_vocab_size": 2, "hidden_act": "relu"},
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            },
            "sentences": {
                "pooling": {"mode": "cls", "normalize": True}, "num_attention_heads": 2, "type_vocab_size": 0,
            },
        },
    ),
    "electra": EncoderRow(
        sizes=SIZES | {"embedding_size": 24},
        models={
            "masked-lm": {"head": MASKED, "hidden_act": "relu"},
            "untied": {"head": MASKED, "tie_word_embeddings": False, "type_vocab_size": 1, "embedding_size": 96},
            "text-labels": {"head": TEXT, "num_labels": 3, "embedding_size": 64},
            "token-labels": {"head": TOKEN, "num_labels": 4, "num_attention_heads": 8},
            "answers": {"head": ANSWER},
        },
    ),
    "albert": EncoderRow(
        sizes=SIZES | {"embedding_size": 24},
        models={
            "masked-lm": {"head": MASKED, "num_hidden_layers": 4},
            "untied": {"head": MASKED, "tie_word_embeddings": False, "hidden_act": "gelu", "embedding_size": 96},
            "text-labels": {"head": TEXT, "num_labels": 3, "embedding_size": 64, "type_vocab_size": 1},
            "token-labels": {"head": TOKEN, "num_labels": 4, "num_hidden_layers": 1},
            "sentences": {"pooling": {"mode": "cls", "normalize": True}, "num_attention_heads": 8},
            "answers": {"head": ANSWER},
        },
    ),
    "deberta": EncoderRow(
        sizes=SIZES | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {
                "head": TEXT, "num_labels": 3, "max_relative_positions": 10, "pos_att_type": "p2c",
                "pooler_hidden_act": "tanh",
            },
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "pos_att_type": "c2p", "position_biased_input": True,
                "type_vocab_size": 2,
            },
            "absolute": {"relative_attention": False, "position_biased_input": True, "hidden_act": "relu"},
            "answers": {"head": ANSWER},
        },
    ),
    "deberta-v2": EncoderRow(
        sizes=SIZES
        | {
            "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
            "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
        },
        models={
            "masked-lm": {"head": MASKED},
            "new-head": {"head": MASKED, "legacy": False, "position_buckets": 7},
            "text-labels": {
                "head": TEXT, "num_labels": 3, "share_att_key": False, "norm_rel_ebd": "none", "position_buckets": -1,
                "max_relative_positions": 12,
            },
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "share_att_key": False, "pos_att_type": "c2p",
                "max_relative_positions": 16, "type_vocab_size": 2,
            },
            "sentences": {
                "pooling": {"mode": "mean", "normalize": True}, "position_biased_input": True, "pos_att_type": "p2c",
                "num_attention_heads": 8,
            },
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "mpnet": EncoderRow(
        sizes=SIZES | {"max_position_embeddings": 50},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "hidden_act": "relu", "num_attention_heads": 2},
            "token-labels": {"head": TOKEN, "num_labels": 4, "layer_norm_eps": 1e-2},
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "num_attention_heads": 8},
            "answers": {"head": ANSWER, "num_hidden_layers": 2},
        },
    ),
    "eurobert": EncoderRow(
        sizes=SIZES | {"pad_token_id": 0, "num_key_value_heads": 2},
        models={
            "masked-lm": {"head": MASKED},
            "tied": {"head": MASKED, "tie_word_embeddings": True, "mlp_bias": True, "hidden_act": "gelu"},
            "mean-of-text": {"head": TEXT, "num_labels": 3, "classifier_pooling": "mean", "attention_bias": True},
            "first-of-text": {"head": TEXT, "num_labels": 4, "classifier_pooling": "bos", "head_dim": 24},
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            },
        },
    ),
    "distilbert": EncoderRow(
        sizes={
            "vocab_size": VOCABULARY, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4,
            "max_position_embeddings": 48,
        },
        models={
            "masked-lm": {"head": MASKED, "sinusoidal_pos_embds": True},
            "untied": {"head": MASKED, "tie_word_embeddings": False, "activation": "relu"},
            "text-labels": {"head": TEXT, "num_labels": 3, "n_heads": 8},
            "token-labels": {"head": TOKEN, "num_labels": 4},
            "plain": {"activation": "gelu_new", "n_heads": 2},
            "answers": {"head": ANSWER},
        },
    ),
    "modernbert": EncoderRow(
        sizes=SIZES | {"num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 0},
        models={
            "masked-lm": {"head": MASKED},
            "mean-of-text": {
                "head": TEXT, "num_labels": 3, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True,
                "norm_eps": 1e-2,
            },
            "first-of-text": {
                "head": TEXT, "num_labels": 5, "classifier_activation": "silu", "attention_bias": True,
                "mlp_bias": True, "local_attention": 5, "hidden_activation": "silu",
                "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            },
            "token-labels": {
                "head": TOKEN, "num_labels": 4, "global_attn_every_n_layers": 2,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
                },
            },
            "untied": {"head": MASKED, "tie_word_embeddings": False, "decoder_bias": False, "local_attention": 128},
            "sentences": {"pooling": {"mode": "mean", "normalize": True}, "num_attention_heads": 2},
        },
    ),
    "longformer": EncoderRow(
        sizes=SIZES | {"type_vocab_size": 1, "attention_window": 8, "max_position_embeddings": 50},
        models={
            "masked-lm": {"head": MASKED},
            "text-labels": {"head": TEXT, "num_labels": 3, "attention_window": [4, 8, 12]},
            "token-labels": {"head": TOKEN, "num_labels": 4, "hidden_act": "relu", "pad_token_id": 0},
            "wide-text": {"head": TEXT, "attention_window": 96, "type_vocab_size": 2, "num_attention_heads": 8},
            "sentences": {"pooling": {"mode": "cls", "normalize": True}, "attention_window": [8, 4, 24]},
        },
    ),
}  # fmt: skip
