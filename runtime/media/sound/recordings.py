"""Recordings for a decoder with a tower of sound: files and samples become windows of a log-mel spectrogram.

    recording   [ 0 … 30 s ][ 30 … 60 s ][ 60 … 71 s, silence ]       float32 [N] at 16 kHz
    windows     [mel, 3000] [mel, 3000]  [mel, 3000]                  clipped below the loudest of all

Where a tower is masked, a recording is one window, and a mask says which frames are sound.
"""

import os
from math import ceil
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import SoundTowerConfig
from edgeformer.contract.tensors import AUDIO_VALUES, FEATURE_MASK
from edgeformer.errors import RequestError, shown
from edgeformer.runtime.media.sound.audio import HOP, SAMPLE_RATE, Samples, check_samples, log_mel_whole, resample
from edgeformer.runtime.media.sound.sound_files import decode_audio, load_audio

Sound: TypeAlias = str | Path | bytes | NDArray[np.floating[Any]]
"""A recording: the path of a file, its content, or mono samples at 16 kHz, floats [N] between −1 and 1."""


def is_sound(value: Any) -> TypeGuard[Sound]:
    """Return whether a value is one recording, and not several."""
    return isinstance(value, str | os.PathLike | bytes | bytearray | memoryview | np.ndarray)


def read_sound(sound: Sound, name: str = "the recording") -> Samples:
    """Return the samples of a recording, float32 [N] at 16 kHz. name: of one without a path, for errors.

    Raises RequestError for what is no recording, and as `load_audio`, `decode_audio` and `check_samples`.
    """
    if isinstance(sound, np.ndarray):
        return check_samples(sound)
    if isinstance(sound, bytes | bytearray | memoryview):
        return resample(*decode_audio(bytes(sound), name))
    if isinstance(sound, str | os.PathLike):
        return load_audio(sound)
    raise RequestError(
        f"{name} is {shown(sound)}; it must be the path of a file, its bytes, or an array of mono samples at 16 kHz."
    )


def check_duration(samples: Samples, tower: SoundTowerConfig, states: int, name: str) -> None:
    """Raise RequestError for a recording that a tower cannot read: too short for a state, or too long for a window."""
    seconds = len(samples) / SAMPLE_RATE
    if tower.masked and len(samples) > tower.frames * HOP:
        raise RequestError(
            f"{name} has {seconds:.1f} seconds, and this model hears {tower.frames * HOP / SAMPLE_RATE:g} at most. "
            "Cut it into parts, with a placeholder for each."
        )
    if not states:
        raise RequestError(f"{name} has {seconds:.3f} seconds, which is too short for a single token.")


def windows_of(samples: Samples, tower: SoundTowerConfig) -> list[dict[str, NDArray[Any]]]:
    """Return what the tower reads of a recording, a window in a run: spectrograms float32 [1, mel_bins, frames].

    The last window is filled with silence. Where the tower is masked, there is a mask, too, int64 [1, frames].
    Source: transformers' VoxtralProcessor, Qwen2AudioProcessor.
    """
    count = 1 if tower.masked else ceil(len(samples) / (tower.frames * HOP))
    padded = np.zeros(count * tower.frames * HOP, np.float32)
    padded[: len(samples)] = samples
    features = log_mel_whole(padded, tower.mel_bins)
    mask = {}
    if tower.masked:
        mask = {FEATURE_MASK: (np.arange(tower.frames) < ceil(len(samples) / HOP)).astype(np.int64)[None]}
    # Contiguous parts, so that those that are read do not hold the others.
    return [{AUDIO_VALUES: each[None].copy(), **mask} for each in np.split(features, count, axis=1)]
