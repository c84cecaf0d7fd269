"""T5Gemma: an encoder-decoder of two Gemma 2 models; the encoder reads in both directions.

Source: transformers/models/t5gemma/modeling_t5gemma.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import BlockConfig, CrossAttentionConfig, DecoderConfig, Seq2SeqConfig
from edgeformer.families import gemma2
from edgeformer.families._family import Family, Fields
from edgeformer.families._layers import bidirectional, vary_attention, within


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a T5Gemma config.json, which holds two of Gemma 2."""
    fields.ignore("classifier_dropout_rate", "dropout_rate", "vocab_size")
    fields.choice("is_encoder_decoder", {True: None}, True)
    encoder = _read_half(fields.take("encoder"), context_length)
    decoder = _read_half(fields.take("decoder"), context_length, encoder.hidden_size)
    tied = fields.take("tie_word_embeddings", True)
    # transformers counts the distance of the window itself to it where attention is bidirectional.
    windows = (attention.window for attention in encoder.attentions)
    wider = ({"window": None if window is None else within(window + 1, encoder)} for window in windows)
    return Seq2SeqConfig(
        encoder=vary_attention(bidirectional(encoder), wider),
        decoder=replace(decoder, blocks=tuple(map(_with_cross_attention, decoder.blocks)), tied_head=tied),
        shared_embedding=False,
    )


def _read_half(data: dict[str, Any], context_length: int | None, source_size: int | None = None) -> DecoderConfig:
    """Read the config of one half. source_size: width of the encoder's states, if the half is the decoder."""
    fields = Fields({"model_type": "t5_gemma_module"} | data, gemma2.FAMILY.defaults)
    fields.ignore("dropout_rate")
    fields.choice("is_decoder", {source_size is not None: None}, source_size is not None)
    fields.choice("cross_attention_hidden_size", {source_size: None}, source_size)
    config = gemma2.read_config(fields, context_length)
    fields.finish()
    return config


def _with_cross_attention(block: BlockConfig) -> BlockConfig:
    """Return the block with cross-attention of the sizes of its self-attention."""
    own = block.attention
    assert own is not None
    return replace(
        block,
        cross_attention=CrossAttentionConfig(
            num_heads=own.num_heads,
            num_kv_heads=own.num_kv_heads,
            head_dim=own.head_dim,
            scale=own.scale,
            softcap=own.softcap,
            qkv_bias=own.qkv_bias,
            output_bias=own.output_bias,
        ),
    )


def _half_tensors(half: str) -> dict[str, str]:
    ours, theirs = f"{half}.blocks.*", f"model.{half}.layers.*"
    names = {f"{half}.embedding": f"model.{half}.embed_tokens", f"{half}.final_norm": f"model.{half}.norm"}
    for attention, name in (("attention", "self_attn"), ("cross_attention", "cross_attn")):
        names[f"{ours}.{attention}_norm"] = f"{theirs}.pre_{name}_layernorm"
        names[f"{ours}.{attention}_output_norm"] = f"{theirs}.post_{name}_layernorm"
        for part in ("query", "key", "value", "output"):
            names[f"{ours}.{attention}.{part}"] = f"{theirs}.{name}.{part[0]}_proj"
    names[f"{ours}.feed_forward_norm"] = f"{theirs}.pre_feedforward_layernorm"
    names[f"{ours}.feed_forward_output_norm"] = f"{theirs}.post_feedforward_layernorm"
    for part in ("gate", "up", "down"):
        names[f"{ours}.feed_forward.{part}"] = f"{theirs}.mlp.{part}_proj"
    return names


FAMILY = Family(
    summary="T5Gemma",
    read_config=read_config,
    tensors={**_half_tensors("encoder"), **_half_tensors("decoder"), "decoder.head": "lm_head.out_proj"},
    optional_prefix="model.",
)
