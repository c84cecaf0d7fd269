"""Qwen2-Audio: Whisper's encoder over one window, whose states are averaged in pairs, and Qwen2.

Source: transformers/models/qwen2_audio/modeling_qwen2_audio.py, processing_qwen2_audio.py.
"""

from edgeformer.config.projectors import LinearProjector
from edgeformer.families._family import Fields
from edgeformer.families._sound import TOWER_TENSORS, read_sound_tower
from edgeformer.families.picture_text import PictureTextFamily, Seeing, named_token
from edgeformer.manifest.placeholders.recording import RecordingMarks

NAMES = {
    "encoder_layers": "num_hidden_layers", "d_model": "hidden_size", "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}  # fmt: skip
"""Second names of fields of the tower, by those that its config.json has."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector."""
    fields.ignore("audio_token_index", "audio_token_id")
    tower = read_sound_tower(fields, NAMES, pool=2, masked=True)
    return Seeing(tower=tower, feature_layers=(len(tower.blocks),), projector=LinearProjector(bias=True))


FAMILY = PictureTextFamily(
    summary="Qwen2-Audio: recordings of up to 30 seconds, and text",
    read=read,
    tensors={**TOWER_TENSORS, "projector.output": "multi_modal_projector.linear"},
    marks=lambda tokenizer_config: RecordingMarks(picture=named_token(tokenizer_config, "audio_token", "<|AUDIO|>")),
    processor="log_mel",
    processor_fields=(
        "audio_bos_token", "audio_eos_token", "audio_token", "chat_template", "feature_extractor", "processor_class",
    ),
)  # fmt: skip
