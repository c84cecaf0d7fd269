"""Configs of whole models, a file for each kind: decoders, encoders, encoder-decoders, towers of pictures, decoders
with such a tower, and dual encoders of texts and pictures.

What differs between the kinds of models is asked of their configs:

- `task` is the key of the tables that other layers have.
- `form` is what clients call the kind, and `reads` is what they call its input.
- `steps` says whether its time goes to steps of single tokens.
- `stacks` are the parts of which parameters, constants and costs are counted.
- A property that a kind lacks, such as the cache of an encoder, has its neutral value.
"""

from edgeformer.config.models.decoder import DecoderConfig
from edgeformer.config.models.dual_encoder import DualEncoderConfig, PictureTower
from edgeformer.config.models.encoder import EncoderConfig
from edgeformer.config.models.grid_vision import GridVisionConfig
from edgeformer.config.models.mtp import MTPConfig
from edgeformer.config.models.naflex_vision import NaflexVisionConfig
from edgeformer.config.models.picture_encoder import PictureEncoderConfig
from edgeformer.config.models.picture_text import PictureTextConfig
from edgeformer.config.models.seq2seq import Seq2SeqConfig
from edgeformer.config.models.sound_text import SoundTextConfig, SoundTowerConfig
from edgeformer.config.models.stack import NO_CACHE, AudioStem, Form, StackConfig, Task, TokenDropout, TokenProjection
from edgeformer.config.models.tower_text import TowerTextConfig
from edgeformer.config.models.vision_encoder import VisionConfig

ModelConfig = (
    DecoderConfig
    | EncoderConfig
    | Seq2SeqConfig
    | VisionConfig
    | NaflexVisionConfig
    | DualEncoderConfig
    | PictureEncoderConfig
    | PictureTextConfig
    | SoundTextConfig
)

__all__ = [
    "NO_CACHE", "AudioStem", "DecoderConfig", "DualEncoderConfig", "EncoderConfig", "Form", "GridVisionConfig",
    "MTPConfig", "ModelConfig", "NaflexVisionConfig",
    "PictureEncoderConfig", "PictureTextConfig", "PictureTower",
    "Seq2SeqConfig", "SoundTextConfig", "SoundTowerConfig", "StackConfig", "Task",
    "TokenDropout", "TokenProjection", "TowerTextConfig", "VisionConfig",
]  # fmt: skip
