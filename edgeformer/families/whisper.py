"""Whisper, Distil-Whisper.

Source: transformers/models/whisper/modeling_whisper.py.
"""

from edgeformer.config import AudioStem, DecoderConfig, EncoderConfig, LearnedPositions, Seq2SeqConfig
from edgeformer.families._bart import NORM, TENSORS, ignore_training, read_blocks
from edgeformer.families._family import Family, Fields
from edgeformer.families._rotary import read_context_length


def read_config(fields: Fields, context_length: int | None) -> Seq2SeqConfig:
    """Read a Whisper config.json. The context length is that of the text; recordings always have all frames."""
    ignore_training(fields)
    fields.ignore("apply_spec_augment", "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob")
    fields.ignore("mask_time_length", "mask_time_min_masks", "mask_time_prob")
    # Options of audio classification, and of word timestamps.
    fields.ignore("classifier_proj_size", "median_filter_width", "use_weighted_layer_sum")
    # transformers ignores it.
    fields.ignore("scale_embedding")
    hidden_size, frames = fields.take("d_model"), fields.take("max_source_positions")
    return Seq2SeqConfig(
        encoder=EncoderConfig(
            vocab_size=0,
            hidden_size=hidden_size,
            context_length=frames,
            blocks=read_blocks(fields, "encoder", norm_placement="pre", key_bias=False),
            final_norm=NORM,
            position_embedding=LearnedPositions(rows=frames),
            audio=AudioStem(mel_bins=fields.take("num_mel_bins")),
        ),
        decoder=DecoderConfig(
            vocab_size=fields.take("vocab_size"),
            hidden_size=hidden_size,
            context_length=read_context_length(fields, context_length, "max_target_positions"),
            blocks=read_blocks(fields, "decoder", norm_placement="pre", key_bias=False),
            final_norm=NORM,
            position_embedding=LearnedPositions(rows=fields.take("max_target_positions")),
            tied_head=fields.take("tie_word_embeddings", True),
        ),
        shared_embedding=False,
    )


FAMILY = Family(
    summary="Whisper, Distil-Whisper",
    read_config=read_config,
    tensors=TENSORS
    | {
        "encoder.stem.first": "model.encoder.conv1",
        "encoder.stem.second": "model.encoder.conv2",
        "decoder.head": "proj_out",
    },
    defaults={"activation_function": "gelu"},
    optional_prefix="model.",
)
