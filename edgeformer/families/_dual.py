"""Functions that dual encoders of texts and pictures share: the half of texts, and the tensor names of both halves."""

from collections.abc import Mapping
from typing import Literal

from edgeformer.config import (
    BlockConfig,
    DualEncoderConfig,
    EncoderConfig,
    LearnedPositions,
    PictureTower,
    TextVectorHead,
)
from edgeformer.families._attention import multi_head
from edgeformer.families._family import Fields, Packed
from edgeformer.families._rotary import read_context_length
from edgeformer.families._vision import encoder_tensors, read_feed_forward, read_norm


def read_text_half(fields: Fields, context_length: int | None, *, causal: bool, head: TextVectorHead) -> EncoderConfig:
    """Read the fields that halves of texts share: the stack of a tower, over tokens."""
    fields.ignore("attention_dropout", "initializer_factor", "bos_token_id", "eos_token_id", "pad_token_id")
    hidden_size, norm = fields.take("hidden_size"), read_norm(fields)
    attention = multi_head(hidden_size, fields.take("num_attention_heads"), bias=True, causal=causal)
    block = BlockConfig(attention=attention, feed_forward=read_feed_forward(fields), norm=norm)
    rows = fields.take("max_position_embeddings")
    return EncoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length, "max_position_embeddings"),
        blocks=(block,) * fields.take("num_hidden_layers"),
        final_norm=norm,
        position_embedding=LearnedPositions(rows=rows),
        head=head,
    )


def join(
    text: EncoderConfig,
    vision: PictureTower,
    probability: Literal["softmax", "sigmoid"],
    *,
    biased: bool = False,
    padded: bool = False,
) -> DualEncoderConfig:
    """Return the config of both halves; see `DualEncoderConfig`."""
    return DualEncoderConfig(text=text, vision=vision, probability=probability, biased=biased, padded=padded)


def dual_tensors(vision: Mapping[str, str | Packed], head: str) -> dict[str, str | Packed]:
    """Return the tensor names of a tower alone, of both halves, and of their similarity.

    vision: those of a tower. head: the map behind the half of texts.
    """
    text = {
        "embedding": "text_model.embeddings.token_embedding",
        "position_embedding": "text_model.embeddings.position_embedding",
        **encoder_tensors("text_model"),
        "final_norm": "text_model.final_layer_norm",
        "vector": head,
    }
    return {
        **vision,
        **{f"vision.{ours}": theirs for ours, theirs in vision.items()},
        **{f"text.{ours}": theirs for ours, theirs in text.items()},
        "similarity.scale": "logit_scale",
        "similarity.bias": "logit_bias",
    }
