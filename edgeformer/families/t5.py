"""T5, Flan-T5, and other encoder-decoders with model_type `t5`.

Source: transformers/models/t5/modeling_t5.py.
"""

from dataclasses import replace

from edgeformer.config import (
    AttentionConfig,
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    NormConfig,
    Seq2SeqConfig,
    T5BiasConfig,
)
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Family, Fields

POSITIONS = 512
"""Positions that T5 was trained with, the default context length. The model has no limit."""


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a T5 config.json."""
    tied = fields.take("tie_word_embeddings", True)
    scaled = fields.take("scale_decoder_outputs", tied)
    return read_t5(fields, context_length, tied=tied, scaled=scaled)


def read_t5(fields: Fields, context_length: int | None, *, tied: bool, scaled: bool) -> Seq2SeqConfig:
    """Read the fields that T5 and its variants share. scaled: whether logits are divided by √hidden_size."""
    fields.ignore("classifier_dropout", "dropout_rate", "initializer_factor", "n_positions", "output_past")
    # These follow from feed_forward_proj.
    fields.ignore("dense_act_fn", "is_gated_act")
    fields.ignore("decoder_start_token_id", "is_decoder")
    fields.choice("is_encoder_decoder", {True: None}, True)
    if context_length is not None and context_length <= 0:
        raise ConfigError(f"--context-length is {context_length}; it must be positive.")
    hidden_size, vocab_size = fields.take("d_model"), fields.take("vocab_size")
    num_layers = fields.take("num_layers")
    norm = NormConfig(eps=fields.take("layer_norm_epsilon", 1e-6))
    bias = T5BiasConfig(
        num_buckets=fields.take("relative_attention_num_buckets", 32),
        max_distance=fields.take("relative_attention_max_distance", 128),
    )
    block = _read_block(fields, norm, bias)
    assert block.attention is not None
    bidirectional = replace(block.attention, causal=False, relative=replace(bias, bidirectional=True))
    length = context_length or POSITIONS
    return Seq2SeqConfig(
        encoder=EncoderConfig(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            context_length=length,
            blocks=(replace(block, attention=bidirectional, cross_attention=None),) * num_layers,
            final_norm=norm,
        ),
        decoder=DecoderConfig(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            context_length=length,
            blocks=(block,) * fields.take("num_decoder_layers", num_layers),
            final_norm=norm,
            tied_head=tied,
            logit_scale=hidden_size**-0.5 if scaled else 1.0,
        ),
        shared_embedding=True,
    )


def _read_block(fields: Fields, norm: NormConfig, bias: T5BiasConfig) -> BlockConfig:
    """Read the block of the decoder."""
    num_heads, head_dim = fields.take("num_heads"), fields.take("d_kv")
    # T5 does not scale scores; the initialization of queries includes the factor.
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=1.0,
        qkv_bias=False,
        output_bias=False,
        rotary=None,
        relative=bias,
    )
    activation = fields.take("feed_forward_proj", "relu")
    # "gated-gelu" of T5 v1.1 is the tanh approximation.
    activation = "gated-gelu_new" if activation == "gated-gelu" else activation
    if activation.removeprefix("gated-") not in ACTIVATIONS:
        raise ConfigError(f"config.json has feed_forward_proj = {activation!r}, which is not supported here.")
    return BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("d_ff"),
            **ACTIVATIONS[activation.removeprefix("gated-")],
            gated=activation.startswith("gated-"),
            bias=False,
        ),
        norm=norm,
        cross_attention=CrossAttentionConfig(
            num_heads=num_heads, head_dim=head_dim, scale=1.0, qkv_bias=False, output_bias=False
        ),
    )


def _layer(half: str, number: int, ours: str, theirs: str) -> dict[str, str]:
    """Return the tensor names of one attention and its norm."""
    layer = f"{half}.block.*.layer.{number}"
    parts = {"query": "q", "key": "k", "value": "v", "output": "o"}
    return {f"{half}.blocks.*.{ours}_norm": f"{layer}.layer_norm"} | {
        f"{half}.blocks.*.{ours}.{part}": f"{layer}.{theirs}.{name}" for part, name in parts.items()
    }


def _feed_forward(half: str, number: int) -> dict[str, str]:
    layer, ours = f"{half}.block.*.layer.{number}", f"{half}.blocks.*.feed_forward"
    return {
        f"{ours}_norm": f"{layer}.layer_norm",
        f"{ours}.gate": f"{layer}.DenseReluDense.wi_0",
        f"{ours}.up": f"{layer}.DenseReluDense.wi_1|{layer}.DenseReluDense.wi",
        f"{ours}.down": f"{layer}.DenseReluDense.wo",
    }


TENSORS = {
    # A checkpoint has the shared embedding as `shared`, and some also, or only, under the names of encoder or decoder.
    "encoder.embedding": "encoder.embed_tokens|shared|decoder.embed_tokens",
    "decoder.embedding": "decoder.embed_tokens|shared",
    "decoder.head": "lm_head",
    **{
        f"{half}.relative.*": f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias"
        for half in ("encoder", "decoder")
    },
    **_layer("encoder", 0, "attention", "SelfAttention"),
    **_feed_forward("encoder", 1),
    "encoder.final_norm": "encoder.final_layer_norm",
    **_layer("decoder", 0, "attention", "SelfAttention"),
    **_layer("decoder", 1, "cross_attention", "EncDecAttention"),
    **_feed_forward("decoder", 2),
    "decoder.final_norm": "decoder.final_layer_norm",
}

# A further copy of the embedding, and a table in old checkpoints that no code reads.
IGNORED = (
    r"shared\.weight",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)

FAMILY = Family(
    summary="T5, T5 v1.1, Flan-T5, their encoder alone; plain and gated feed-forwards, any context length",
    read_config=read_config,
    tensors=TENSORS,
    ignored_tensors=IGNORED,
    encoder_class="T5EncoderModel",
)
