"""BLOOM, BLOOMZ.

Source: transformers/models/bloom/modeling_bloom.py.
"""

from edgeformer.config import AlibiConfig, BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig
from edgeformer.errors import ContextLengthError
from edgeformer.families._alibi import alibi_slopes
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields, packed_qkv


def read_config(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read a BLOOM config.json."""
    fields.ignore("hidden_dropout", "unk_token_id")
    # Options of Megatron for training; results are equal except for rounding.
    fields.ignore("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi")
    fields.ignore("pretraining_tp", "skip_bias_add", "skip_bias_add_qkv")
    # In transformers 5.23, slow_but_exact also leaves out biases.
    fields.choice("slow_but_exact", {False: None}, False)
    fields.choice("apply_residual_connection_post_layernorm", {False: None}, False)
    hidden_size = _take(fields, "hidden_size", "n_embed")
    num_heads = _take(fields, "n_head", "num_attention_heads")
    num_layers = _take(fields, "n_layer", "num_hidden_layers")
    fields.choice("n_inner", {4 * hidden_size: None}, 4 * hidden_size)
    # seq_length is not a limit: ALiBi has no table of positions, so the context may be longer.
    trained_length = fields.take("seq_length", 2048)
    context_length = trained_length if context_length is None else context_length
    if context_length <= 0:
        raise ContextLengthError(f"--context-length is {context_length}; it must be positive.")
    norm = NormConfig(kind="layer_norm", eps=fields.take("layer_norm_epsilon", 1e-5), bias=True)
    block = BlockConfig(
        attention=multi_head(hidden_size, num_heads, bias=True, relative=AlibiConfig(slopes=alibi_slopes(num_heads))),
        feed_forward=FeedForwardConfig(
            intermediate_size=4 * hidden_size, activation="gelu_tanh", gated=False, bias=True
        ),
        norm=norm,
    )
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=context_length,
        blocks=(block,) * num_layers,
        final_norm=norm,
        tied_head=fields.take("tie_word_embeddings", True),
        embedding_norm=norm,
    )


def _take(fields: Fields, name: str, alias: str) -> int:
    """Read a field with two names. Raises ConfigError if it has both, with different values."""
    value = fields.take(alias, None)
    size: int = fields.take(name) if value is None else fields.choice(name, {value: value}, value)
    return size


FAMILY = Family(
    summary="BLOOM, BLOOMZ; any context length",
    read_config=read_config,
    tensors={
        "embedding": "transformer.word_embeddings",
        "embedding_norm": "transformer.word_embeddings_layernorm",
        "blocks.*.attention_norm": "transformer.h.*.input_layernorm",
        **packed_qkv("transformer.h.*.self_attention.query_key_value", "groups"),
        "blocks.*.attention.output": "transformer.h.*.self_attention.dense",
        "blocks.*.feed_forward_norm": "transformer.h.*.post_attention_layernorm",
        "blocks.*.feed_forward.up": "transformer.h.*.mlp.dense_h_to_4h",
        "blocks.*.feed_forward.down": "transformer.h.*.mlp.dense_4h_to_h",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    optional_prefix="transformer.",
)
