"""Generate text about recordings: a decoder-only language model with a tower of sound in front of it."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.config import SoundTextConfig
from edgeformer.runtime.media.pictures.placeholders import expand
from edgeformer.runtime.media.sound.audio import HOP, Samples
from edgeformer.runtime.media.sound.recordings import Sound, check_duration, is_sound, read_sound, windows_of
from edgeformer.runtime.steps.picture_tower import Features, PromptPicture, WaitingPicture
from edgeformer.runtime.tasks.tower_reader import ReadMedium
from edgeformer.runtime.tasks.tower_text import TowerTextLM


class SoundTextLM(TowerTextLM):
    """A decoder-only language model that reads recordings, too: `sounds` of `generate`, `stream`, `chat` and `forward`.

    A recording is a path, the bytes of a file, or mono samples at 16 kHz. The tower reads it a window at a time.
    """

    reads = "sounds"
    medium = "recording"

    @property
    def config(self) -> SoundTextConfig:
        """The config of the model."""
        assert isinstance(self.manifest.model, SoundTextConfig), "`Manifest` has checked it"
        return self.manifest.model

    def sound_features(self, sound: Sound, name: str = "the recording") -> Features:
        """Return what stands in the place of embeddings for a recording, float32 [tokens, E], of all its windows.

        Raises RequestError for what is no recording, or one that cannot be read. name: of one without a path.
        """
        samples = read_sound(sound, name)
        return self._recording(samples, self._grid(samples, name))[0].states

    def _grid(self, samples: Samples, name: str) -> tuple[int, int]:
        """Return the windows of a recording, and the states of each. Raises RequestError where there are none."""
        windows, states = self.config.tokens_of(len(samples), HOP)
        check_duration(samples, self.config.tower, states, name)
        return windows, states

    def _read_media(
        self, tokens: Sequence[int], media: Sequence[Sound], names: Sequence[str], most: int
    ) -> list[ReadMedium]:
        """Return the recordings of a prompt, and the windows and states of each."""
        read = [read_sound(sound, name) for sound, name in zip(media, names, strict=True)]
        grids = [self._grid(samples, name) for samples, name in zip(read, names, strict=True)]
        count = len(expand(tokens, self.placeholder, grids))
        self._check_tokens(count, most, "Leave recordings out, or cut them.")
        return [self._recording(samples, grid) for samples, grid in zip(read, grids, strict=True)]

    def _recording(self, samples: Samples, grid: tuple[int, int]) -> tuple[PromptPicture, tuple[int, int]]:
        """Return a recording of a prompt, which the tower reads when the prompt is run."""
        digest = hashlib.sha256(b"sound" + np.ascontiguousarray(samples).data).digest()
        windows, states = grid
        tower, count = self.config.tower, windows * states
        # A masked window has more states than there is sound.
        heard = WaitingPicture(digest, count, self.tower, lambda: windows_of(samples, tower), lambda all: all[:count])
        return heard, grid

    def _is_medium(self, value: Any) -> bool:
        """Return whether a value is one recording, and not several."""
        return is_sound(value)
