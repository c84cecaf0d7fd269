"""The transformer of the paper of 2017. It has no class in transformers; its config.json has these fields:

    {"model_type": "transformer", "vocab_size": 37000, "d_model": 512, "num_heads": 8, "d_ff": 2048,
     "num_encoder_layers": 6, "num_decoder_layers": 6, "max_position_embeddings": 512}

Tensors have the names of edgeformer's modules; `parameter_shapes` lists them. Source: arXiv 1706.03762.
"""

from dataclasses import replace

from edgeformer.config import (
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    NormConfig,
    Seq2SeqConfig,
    SinusoidalPositions,
)
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length
from edgeformer.families.generic import FAMILY as GENERIC


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read config.json. Defaults are those of the paper; the epsilon of norms is that of the authors' code."""
    hidden_size, vocab_size = fields.take("d_model"), fields.take("vocab_size")
    bias = fields.take("attention_bias", False)
    attention = multi_head(hidden_size, fields.take("num_heads"), bias=bias)
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take("d_ff"),
            **fields.choice("activation", ACTIVATIONS, "relu"),
            gated=False,
            bias=fields.take("feed_forward_bias", True),
        ),
        norm=NormConfig(kind="layer_norm", eps=fields.take("norm_eps", 1e-6), bias=True),
        cross_attention=CrossAttentionConfig(
            num_heads=attention.num_heads,
            head_dim=attention.head_dim,
            scale=attention.scale,
            qkv_bias=bias,
            output_bias=bias,
        ),
        norm_placement="post",
    )
    reading = replace(block, attention=replace(attention, causal=False), cross_attention=None)
    sizes = {
        "hidden_size": hidden_size,
        "context_length": read_context_length(fields, context_length),
        "final_norm": None,
        "embedding_scale": hidden_size**0.5,
        "position_embedding": SinusoidalPositions(),
    }
    return Seq2SeqConfig(
        encoder=EncoderConfig(vocab_size=vocab_size, blocks=(reading,) * fields.take("num_encoder_layers"), **sizes),
        decoder=DecoderConfig(
            vocab_size=fields.take("decoder_vocab_size", vocab_size),
            blocks=(block,) * fields.take("num_decoder_layers"),
            tied_head=fields.take("tied_head", True),
            head_bias=fields.take("head_bias", False),
            **sizes,
        ),
        shared_embedding=fields.take("shared_embedding", True),
    )


FAMILY = Family(
    summary="the encoder-decoder of 2017, with safetensors that have edgeformer's names",
    read_config=read_config,
    tensors=GENERIC.tensors,
)
