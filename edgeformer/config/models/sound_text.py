"""The configs of causal language models that read recordings, and of their towers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeformer.config.models.encoder import EncoderConfig
from edgeformer.config.models.picture_text import PictureTextConfig
from edgeformer.config.models.stack import Task
from edgeformer.config.models.tower_text import TowerTextConfig
from edgeformer.contract.tensors import TensorSpec, sound_inputs
from edgeformer.documents.schema import check


@dataclass(frozen=True, kw_only=True)
class SoundTowerConfig(EncoderConfig):
    """A tower of sound: Whisper's encoder over windows of a log-mel spectrogram, which all have one length.

    Attributes:
        pool: states that follow each other and become their mean, in front of the final norm; None where all are read.
        masked: True where a recording is one window at most, and the rest of it is neither attended to nor read: the
            graph has an input that says where it begins. None where a recording is cut into windows, and the silence
            behind it is heard.
    """

    kind: Literal["sound_tower"] = "sound_tower"  # type: ignore[assignment]  # of another class of configs
    pool: int | None = None
    masked: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.audio is not None, self, "audio", "given")
        check(not any(attention.causal for attention in self.attentions), self, "blocks", "not causal")
        divides = self.pool is None or (self.pool > 0 and self.context_length % self.pool == 0)
        check(divides, self, "pool", f"a divisor of the {self.context_length} positions, or None")

    @property
    def frames(self) -> int:
        """Return the frames of a window, of which two become one position."""
        return 2 * self.context_length

    @property
    def mel_bins(self) -> int:
        """Return the numbers of a frame."""
        assert self.audio is not None, "the config has checked it"
        return self.audio.mel_bins

    @property
    def prefix_tokens(self) -> int:
        """Return 0: no learned tokens stand before the states."""
        return 0

    @property
    def grid_input(self) -> None:
        """Return None: a window is no grid of patches."""

    def inputs(self, tiled: bool) -> list[TensorSpec]:
        """Return the inputs of a graph."""
        return sound_inputs(self.mel_bins, self.frames, masked=bool(self.masked))

    def states(self, side: int, *, prefix: bool) -> int:
        """Return the states of a window."""
        return self.states_of(self.frames)

    def states_of(self, frames: int) -> int:
        """Return the states of the first frames of a window."""
        return ((frames + 1) // 2) // (self.pool or 1)

    def check_model(self, model: TowerTextConfig) -> None:
        """Raise ConfigError unless a model can read its states."""
        fits = self.states(1, prefix=False) % model.projector.joined == 0
        check(fits and model.projector.side == 1, model, "projector", "one of frames that make up a window")
        lines = not (model.tiled or model.newline or model.deepstack or model.axes or model.bidirectional)
        check(lines, model, "tower", "a tower of pictures where states are no plain row")


@dataclass(frozen=True, kw_only=True)
class SoundTextConfig(PictureTextConfig):
    """A causal language model with a tower of sound, whose states stand in the place of embeddings of tokens."""

    task: ClassVar[Task] = "audio-text-to-text"
    tower_graph: ClassVar[str] = "audio_encoder"
    features: ClassVar[str] = "audio_features"
    kind: Literal["sound_text"] = "sound_text"  # type: ignore[assignment]  # of another class of configs
    tower: SoundTowerConfig  # type: ignore[assignment]  # pictures have others

    @property
    def sees_pictures(self) -> bool:
        """Whether the model reads pictures."""
        return False

    @property
    def picture_tokens(self) -> int:
        """Return the number of states that a window becomes."""
        return self.tower.states(1, prefix=False) // self.projector.joined

    def tokens_of(self, samples: int, hop: int) -> tuple[int, int]:
        """Return the windows of a recording, and the states of each. hop: samples from one frame to the next."""
        frames = -(-samples // hop)
        if self.tower.masked:
            return 1, self.tower.states_of(frames) // self.projector.joined
        return -(-frames // self.tower.frames), self.picture_tokens
