"""ModernBERT: rotary embeddings, gated feed-forward, windows in two of three layers.

Source: transformers/models/modernbert/modeling_modernbert.py.
"""

from dataclasses import replace

from edgeformer.config import (
    BlockConfig,
    ClassificationHead,
    EncoderConfig,
    FeedForwardConfig,
    MaskedLMHead,
    NormConfig,
)
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._encoder import HEAD_ACTIVATIONS, Head, read_head, read_labels
from edgeformer.families._family import Family, Fields, packed_gate_up, packed_qkv
from edgeformer.families._layers import FULL, SLIDING, read_layer_types, vary_attention, within
from edgeformer.families._rotary import read_context_length, read_rotary_by_type


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read a ModernBERT config.json."""
    fields.ignore("classifier_dropout", "cls_token_id", "embedding_dropout", "mlp_dropout", "sep_token_id")
    fields.ignore("initializer_cutoff_factor", "sparse_pred_ignore_index", "sparse_prediction")
    # Options of other kernels than the eager ones, and a second name of norm_eps that no code reads.
    fields.ignore("deterministic_flash_attn", "layer_norm_eps", "reference_compile", "repad_logits_with_grad")
    fields.ignore("tie_word_embeddings")
    fields.choice("position_embedding_type", {"absolute": None}, "absolute")  # no code reads it
    hidden_size, layers = fields.take("hidden_size"), fields.take("num_hidden_layers")
    norm = NormConfig(kind="layer_norm", eps=fields.take("norm_eps"), bias=fields.take("norm_bias"))
    head = _read_head(fields, norm)
    attention = multi_head(
        hidden_size, fields.take("num_attention_heads"), bias=fields.take("attention_bias"), causal=False
    )
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("intermediate_size"),
            **fields.choice("hidden_activation", ACTIVATIONS),
            bias=fields.take("mlp_bias"),
        ),
        norm=norm,
    )
    config = EncoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        # The first block needs no norm, because the embeddings are normalized.
        blocks=(replace(block, attention_norm=False), *[block] * (layers - 1)),
        final_norm=norm,
        embedding_norm=norm,
        head=head,
    )
    every = fields.take("global_attn_every_n_layers", 3)
    types = read_layer_types(fields, [SLIDING if layer % every else FULL for layer in range(layers)])
    rotary = read_rotary_by_type(
        fields,
        attention.head_dim,
        config.context_length,
        {
            FULL: {"rope_theta": fields.take("global_rope_theta", 160000.0)},
            SLIDING: {"rope_theta": fields.take("local_rope_theta", 10000.0)},
        },
    )
    # Half of local_attention on each side.
    windows = {FULL: None, SLIDING: within(fields.take("local_attention") // 2 + 1, config)}
    return vary_attention(config, ({"rotary": rotary[kind], "window": windows[kind]} for kind in types))


def _read_head(fields: Fields, norm: NormConfig) -> Head:
    """Read the head, whose dense layer has the norm of the blocks."""
    pooling = fields.choice("classifier_pooling", {"cls": "first", "mean": "mean"})
    dense = {"norm": norm, "dense_bias": fields.take("classifier_bias")}
    activation = fields.choice("classifier_activation", HEAD_ACTIVATIONS)
    tied, bias = fields.take("tie_word_embeddings"), fields.take("decoder_bias")
    return read_head(
        fields,
        "ModernBert",
        {
            "ForMaskedLM": lambda: MaskedLMHead(activation=activation, **dense, tied=tied, bias=bias),
            "ForSequenceClassification": lambda: ClassificationHead(
                labels=read_labels(fields), pooling=pooling, dense=activation, **dense
            ),
            "ForTokenClassification": lambda: ClassificationHead(
                labels=read_labels(fields), pooling=None, dense=activation, **dense
            ),
        },
    )


FAMILY = Family(
    summary="ModernBERT; masked words, labels of texts and tokens, sentence embeddings",
    read_config=read_config,
    tensors={
        "embedding": "model.embeddings.tok_embeddings",
        "embedding_norm": "model.embeddings.norm",
        "blocks.*.attention_norm": "model.layers.*.attn_norm",
        **packed_qkv("model.layers.*.attn.Wqkv"),
        "blocks.*.attention.output": "model.layers.*.attn.Wo",
        "blocks.*.feed_forward_norm": "model.layers.*.mlp_norm",
        **packed_gate_up("model.layers.*.mlp.Wi"),
        "blocks.*.feed_forward.down": "model.layers.*.mlp.Wo",
        "final_norm": "model.final_norm",
        "masked_lm.dense": "head.dense",
        "masked_lm.norm": "head.norm",
        "masked_lm.output": "decoder",
        "classifier.dense": "head.dense",
        "classifier.norm": "head.norm",
        "classifier.output": "classifier",
    },
    # Defaults of transformers' config class.
    defaults={
        "attention_bias": False, "classifier_activation": "gelu", "classifier_bias": False, "classifier_pooling": "cls",
        "decoder_bias": True, "hidden_activation": "gelu", "local_attention": 128, "mlp_bias": False,
        "norm_bias": False, "norm_eps": 1e-5, "tie_word_embeddings": True,
    },
    optional_prefix="model.",
    # Heads of other tasks.
    ignored_tensors=(r"(head\.(dense|norm)|decoder|classifier)\.(weight|bias)",),
)  # fmt: skip
