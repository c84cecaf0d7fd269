"""Voxtral: Whisper's encoder over windows of a recording of any length, and a text model of Ministral's or Mistral's.

A state is made of four positions, 80 ms; a recording has all of those of its windows, silence behind it included.
Source: transformers/models/voxtral/modeling_voxtral.py, processing_voxtral.py; mistral-common for the prompts.
"""

from edgeformer.config import FeedForwardConfig
from edgeformer.config.projectors import StackedFramesProjector
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields
from edgeformer.families._sound import TOWER_TENSORS, read_sound_tower
from edgeformer.families.picture_text import PictureTextFamily, Seeing
from edgeformer.manifest.placeholders.recording import RecordingMarks

NAMES = {
    "d_model": "hidden_size", "encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size", "encoder_layerdrop": "layerdrop",
}  # fmt: skip
"""Names that the fields of the tower have in its config.json, by those of Whisper's."""


def read(fields: Fields) -> Seeing:
    """Read the tower and the projector, which reads as many numbers as the tower's networks have inside."""
    fields.ignore("audio_token_id")
    tower = read_sound_tower(fields, NAMES)
    feed_forward = tower.blocks[0].feed_forward
    assert isinstance(feed_forward, FeedForwardConfig), "a tower has no experts"
    size = feed_forward.intermediate_size
    if size % tower.hidden_size:
        raise ConfigError(
            f"config.json has audio_config with intermediate_size = {size}, of which states of {tower.hidden_size} do "
            "not make up a whole number."
        )
    activation = fields.choice("projector_hidden_act", ACTIVATIONS, "gelu")
    return Seeing(
        tower=tower,
        feature_layers=(len(tower.blocks),),
        projector=StackedFramesProjector(frames=size // tower.hidden_size, **activation),
    )


FAMILY = PictureTextFamily(
    summary="Voxtral: recordings of any length, and text",
    read=read,
    tensors={
        **TOWER_TENSORS,
        "projector.input": "multi_modal_projector.linear_1",
        "projector.output": "multi_modal_projector.linear_2",
    },
    marks=lambda tokenizer_config: RecordingMarks(picture="[AUDIO]", start="[BEGIN_AUDIO]"),
    processor="log_mel",
    processor_fields=("feature_extractor", "processor_class"),
)
