"""From pictures to text (TrOCR): a ViT or a DeiT, and a decoder that attends to its states.

Source: transformers/models/vision_encoder_decoder/modeling_vision_encoder_decoder.py, trocr/modeling_trocr.py.
"""

from dataclasses import replace
from typing import Any

from edgeformer.config import DecoderConfig, LearnedPositions, Seq2SeqConfig, SinusoidalPositions, VisionConfig
from edgeformer.errors import ConfigError, shown
from edgeformer.families import deit, vit
from edgeformer.families._bart import NORM, block_tensors, ignore_training, read_blocks
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length
from edgeformer.families._vision import vit_tensors

ENCODERS = {"deit": deit, "vit": vit}
"""The families of encoders."""

DEFAULTS: dict[str, Any] = {
    "vocab_size": 50265, "d_model": 1024, "decoder_layers": 12, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
    "activation_function": "gelu", "max_position_embeddings": 512, "scale_embedding": False,
    "use_learned_position_embeddings": True, "layernorm_embedding": True, "pad_token_id": 1,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Fields of the decoder of transformers' class."""


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a config.json. The context length is that of the text; pictures always have all patches."""
    fields.choice("is_encoder_decoder", {True: None}, True)
    encoder, decoder = _read_encoder(fields.take("encoder")), fields.take("decoder")
    # The halves say whether they are tied; the whole is never, for it has one table.
    fields.ignore("tie_word_embeddings", "processor_class")
    kind = decoder.get("model_type")
    if kind != "trocr":
        raise ConfigError(f"config.json has a decoder of model_type {shown(kind)}; supported behind pictures: trocr.")
    read = Fields({**decoder, "model_type": "trocr", "is_encoder_decoder": True, "is_decoder": False}, DEFAULTS)
    size = read.take("cross_attention_hidden_size", read.take("d_model"))
    if size != encoder.hidden_size:
        raise ConfigError(
            f"config.json has an encoder of size {encoder.hidden_size} and a decoder that attends to states of size "
            f"{size}: a layer between them (enc_to_dec_proj) is not supported. TrOCR has none, and says "
            "cross_attention_hidden_size."
        )
    config = Seq2SeqConfig(encoder=encoder, decoder=_read_decoder(read, context_length), shared_embedding=False)
    read.finish()
    return config


def _read_encoder(given: dict[str, Any]) -> VisionConfig:
    """Read the encoder, without what it pools."""
    kind = given.get("model_type")
    if kind not in ENCODERS:
        raise ConfigError(
            f"config.json has an encoder of model_type {shown(kind)}; supported before a decoder: "
            f"{', '.join(ENCODERS)}."
        )
    fields = Fields({**given, "architectures": None}, ENCODERS[kind].FAMILY.defaults)
    fields.ignore("add_cross_attention", "is_decoder", "tie_word_embeddings", "cross_attention_hidden_size")
    config = ENCODERS[kind].read_config(fields, None)
    fields.finish()
    return replace(config, pooler=None)


def _read_decoder(fields: Fields, context_length: int | None) -> DecoderConfig:
    """Read TrOCR's decoder."""
    ignore_training(fields)
    fields.ignore("add_cross_attention", "attention_dropout", "decoder_start_token_id", "classifier_dropout")
    hidden_size, rows = fields.take("d_model"), fields.take("max_position_embeddings")
    # Positions start at 2, or at pad_token_id + 1; transformers does not count padding, which is at the end here.
    padding = fields.take("pad_token_id")
    learned = fields.take("use_learned_position_embeddings")
    return DecoderConfig(
        vocab_size=fields.take("vocab_size"),
        hidden_size=hidden_size,
        context_length=read_context_length(fields, context_length),
        blocks=read_blocks(fields, "decoder", norm_placement="post"),
        final_norm=None,
        embedding_scale=hidden_size**0.5 if fields.take("scale_embedding") else 1.0,
        position_embedding=LearnedPositions(rows=rows + 2, offset=2)
        if learned
        else SinusoidalPositions(interleaved=False, to_base=True, offset=padding + 1),
        embedding_norm=NORM if fields.take("layernorm_embedding") else None,
        tied_head=fields.take("tie_word_embeddings"),
    )


DECODER = "decoder.model.decoder"

FAMILY = Family(
    summary="TrOCR: from a picture to its text; encoders ViT and DeiT",
    read_config=read_config,
    tensors={
        **{f"encoder.{ours}": theirs for ours, theirs in vit_tensors("encoder").items() if ours != "classifier.output"},
        "encoder.prefix.1": "encoder.embeddings.distillation_token",
        "decoder.embedding": f"{DECODER}.embed_tokens",
        "decoder.position_embedding": f"{DECODER}.embed_positions",
        "decoder.embedding_norm": f"{DECODER}.layernorm_embedding",
        **block_tensors("decoder.blocks.*", f"{DECODER}.layers.*"),
        "decoder.head": "decoder.output_projection",
    },
    ignored_tensors=(r"encoder\.pooler\..*",),
    computed_tensors={r"decoder\.model\.decoder\.embed_positions\.weights": "sinusoids"},
)
