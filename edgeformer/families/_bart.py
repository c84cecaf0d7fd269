"""BART and its variants: encoder-decoders whose config.json has every size twice, for `encoder` and for `decoder`.

Source: transformers/models/bart/modeling_bart.py. The variants have files of their own. They differ in the placement
of norms, in the position embeddings, and in the bias of logits.
"""

from typing import Literal

from edgeformer.config import (
    BlockConfig,
    CrossAttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeedForwardConfig,
    LearnedPositions,
    NormConfig,
    Seq2SeqConfig,
    SinusoidalPositions,
)
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields
from edgeformer.families._rotary import read_context_length

NORM = NormConfig(kind="layer_norm", eps=1e-5, bias=True)

Half = Literal["encoder", "decoder"]
Placement = Literal["pre", "post"]


def read_bart(
    fields: Fields,
    context_length: int | None,
    *,
    norm_placement: Placement,
    positions: LearnedPositions | SinusoidalPositions,
    embedding_norm: bool = False,
    logits_bias: bool = True,
    one_vocabulary: bool = True,
) -> Seq2SeqConfig:
    """Read the fields that BART and its variants share; encoder and decoder get the same context length.

    Args:
        norm_placement: of all blocks.
        positions: position embeddings of encoder and decoder.
        embedding_norm: whether embeddings are normalized.
        logits_bias: whether there is a `final_logits_bias`.
        one_vocabulary: whether encoder and decoder share vocabulary and embeddings; otherwise `decoder_vocab_size` is
            the size of the decoder's vocabulary.
    """
    ignore_training(fields)
    length = read_context_length(fields, context_length)
    hidden_size, tied = fields.take("d_model"), fields.take("tie_word_embeddings", True)
    vocab_size = fields.take("vocab_size")
    sizes = {
        "hidden_size": hidden_size,
        "context_length": length,
        "final_norm": NORM if norm_placement == "pre" else None,
        "embedding_scale": hidden_size**0.5 if fields.take("scale_embedding") else 1.0,
        "position_embedding": positions,
        "embedding_norm": NORM if embedding_norm else None,
    }
    return Seq2SeqConfig(
        encoder=EncoderConfig(
            vocab_size=vocab_size, blocks=read_blocks(fields, "encoder", norm_placement=norm_placement), **sizes
        ),
        decoder=DecoderConfig(
            vocab_size=vocab_size if one_vocabulary else fields.take("decoder_vocab_size", vocab_size),
            blocks=read_blocks(fields, "decoder", norm_placement=norm_placement),
            tied_head=tied,
            head_bias=logits_bias,
            **sizes,
        ),
        # Without tying, encoder, decoder and head have separate tables.
        shared_embedding=tied and one_vocabulary,
    )


def ignore_training(fields: Fields) -> None:
    """Ignore fields for training, and fields that transformers has not read since version 4."""
    fields.ignore("activation_dropout", "decoder_layerdrop", "dropout", "encoder_layerdrop", "init_std")
    fields.ignore("_num_labels", "classif_dropout", "classifier_dropout", "output_past", "prefix", "save_step")
    fields.ignore("add_bias_logits", "add_final_layer_norm", "extra_pos_embeddings", "force_bos_token_to_be_generated")
    fields.ignore("normalize_before", "normalize_embedding", "static_position_embeddings")
    fields.choice("is_encoder_decoder", {True: None}, True)
    fields.choice("is_decoder", {False: None}, False)


def read_blocks(
    fields: Fields, half: Half, *, norm_placement: Placement, key_bias: bool = True
) -> tuple[BlockConfig, ...]:
    """Read the blocks of the encoder or the decoder. key_bias: whether key projections have a bias, too."""
    is_decoder = half == "decoder"
    num_heads, num_layers = fields.take(f"{half}_attention_heads"), fields.take(f"{half}_layers")
    if not is_decoder:  # transformers has a second name for encoder_layers
        fields.choice("num_hidden_layers", {num_layers: None}, num_layers)
    attention = multi_head(fields.take("d_model"), num_heads, bias=True, causal=is_decoder, key_bias=key_bias)
    across = CrossAttentionConfig(
        num_heads=num_heads,
        head_dim=attention.head_dim,
        scale=attention.scale,
        qkv_bias=True,
        output_bias=True,
        key_bias=key_bias,
    )
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            intermediate_size=fields.take(f"{half}_ffn_dim"),
            **fields.choice("activation_function", ACTIVATIONS),
            gated=False,
            bias=True,
        ),
        norm=NORM,
        cross_attention=across if is_decoder else None,
        norm_placement=norm_placement,
    )
    return (block,) * num_layers


def block_tensors(ours: str, theirs: str) -> dict[str, str]:
    """Return the tensor names of one block: edgeformer's module → the checkpoint's."""
    names = {f"{ours}.feed_forward_norm": "final_layer_norm", f"{ours}.feed_forward.up": "fc1"}
    names |= {f"{ours}.feed_forward.down": "fc2"}
    for attention, name in (("attention", "self_attn"), ("cross_attention", "encoder_attn")):
        names[f"{ours}.{attention}_norm"] = f"{name}_layer_norm"
        for part in ("query", "key", "value"):
            names[f"{ours}.{attention}.{part}"] = f"{name}.{part[0]}_proj"
        names[f"{ours}.{attention}.output"] = f"{name}.out_proj"
    return {module: f"{theirs}.{name}" for module, name in names.items()}


def _half_tensors(half: Half) -> dict[str, str]:
    return {
        # A checkpoint with tied embeddings has them as `shared`, and some also under these names.
        f"{half}.embedding": f"model.{half}.embed_tokens|model.shared",
        f"{half}.position_embedding": f"model.{half}.embed_positions",
        f"{half}.embedding_norm": f"model.{half}.layernorm_embedding",
        f"{half}.final_norm": f"model.{half}.layer_norm",
        **block_tensors(f"{half}.blocks.*", f"model.{half}.layers.*"),
    }


TENSORS = {
    **_half_tensors("encoder"),
    **_half_tensors("decoder"),
    "decoder.head": "lm_head",
    "decoder.head.bias": "final_logits_bias",
}

LOGITS_BIAS = "final_logits_bias"
"""Tensor that checkpoints may lack; it is zero then."""

# Nothing reads the shared embedding if encoder and decoder have embeddings of their own.
IGNORED = (r"model\.shared\.weight", r"model\.(encoder|decoder)\.version")

STORED_POSITIONS = {half: f"model.{half}.embed_positions.weight" for half in ("encoder", "decoder")}
"""Tables that Marian and PEGASUS read where a checkpoint has them, and compute otherwise."""
