"""The trials of all kinds of models."""

from edgeformer.config import Task
from edgeformer.export.parity.trials.decoder import DecoderTrial
from edgeformer.export.parity.trials.encoder import EncoderTrial
from edgeformer.export.parity.trials.encoder_decoder import EncoderDecoderTrial
from edgeformer.export.parity.trials.pictures.dual import DualTrial
from edgeformer.export.parity.trials.pictures.vision import VisionTrial
from edgeformer.export.parity.trials.protocol import Trial

TRIALS: dict[Task, type[Trial]] = {
    "causal-lm": DecoderTrial,
    "encoder": EncoderTrial,
    "seq2seq-lm": EncoderDecoderTrial,
    "vision-encoder": VisionTrial,
    "image-text-encoder": EncoderTrial,
    "image-text-to-text": DecoderTrial,
    "audio-text-to-text": DecoderTrial,
    "dual-encoder": DualTrial,
}
"""The trial of the graphs of each kind."""
