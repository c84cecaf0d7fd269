"""The spectrogram of a recording, and the windows that are cut of it."""

from typing import Any

import numpy as np

from edgeformer.runtime.media.sound.audio import HOP, SAMPLE_RATE, Spectrogram, log_mel, log_mel_whole
from edgeformer.runtime.tasks.speech.prompt import FRAMES_PER_SECOND


class Recording:
    """The spectrogram of a recording. whole: as one, of which windows are cut; else window by window.

    samples: [N] at 16 kHz. The loudest sound, to which others are compared, is that of the whole recording or of each
    window. As in transformers, only a whole recording longer than a window ends with its last frame; `sounding` are the
    frames without padding.
    """

    def __init__(self, samples: Any, mel_bins: int, seconds: int, whole: bool):
        self.window_frames = seconds * FRAMES_PER_SECOND
        self.samples = len(samples)
        step = seconds * SAMPLE_RATE
        if whole and self.samples > step:
            self.features = log_mel_whole(samples, mel_bins)
        else:
            pieces = [samples[start : start + step] for start in range(0, max(self.samples, 1), step)]
            self.features = np.concatenate([log_mel(piece, mel_bins, seconds) for piece in pieces], axis=1)
        self.frames = self.features.shape[1]
        self.sounding = min(self.frames, -(-self.samples // HOP))
        self._last: tuple[int, Spectrogram] | None = None

    def window(self, frame: int) -> Spectrogram:
        """Return the window that begins at a frame; behind the end of the recording it is 0.

        The last one is kept: what detects the language in the first window also transcribes it.
        """
        if self._last is None or self._last[0] != frame:
            kept = self.features[:, frame : frame + self.window_frames]
            padded = np.pad(kept, ((0, 0), (0, self.window_frames - kept.shape[1])))
            self._last = frame, Spectrogram(padded)
        return self._last[1]
