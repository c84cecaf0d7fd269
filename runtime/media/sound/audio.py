"""Convert sound to the input of Whisper: resample it to 16 kHz, compute a log-mel spectrogram.

    features = log_mel(load_audio("speech.wav"), mel_bins=80)

`sound_files` has `load_audio`. It needs numpy alone.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgeformer.errors import RequestError

Samples = NDArray[np.float32]
"""Mono sound: float32 [N], between -1 and 1."""

SAMPLE_RATE = 16_000
"""Samples per second (Hz) that Whisper takes. Source: arXiv 2212.04356, section 2.2, as for WINDOW and HOP."""

WINDOW = 400
"""Samples per frame: 25 ms, which gives 201 frequencies from 0 to 8 kHz."""

HOP = 160
"""Samples from one frame to the next: 10 ms, so that a second has 100 frames."""

# Frames that are transformed at a time: their spectra take 15 MB in float64, however long the recording.
_BLOCK = 3_000

# Sample rates (Hz) of sound files that exist; a damaged header must not make us allocate gigabytes.
_RATES = range(1_000, 768_001)


def resample(samples: ArrayLike, from_rate: int, to_rate: int = SAMPLE_RATE) -> Samples:
    """Resample floats [N] from from_rate (Hz) to to_rate: float32 [ceil(N * to_rate / from_rate)].

    A low-pass in the frequency domain keeps everything up to 95% of the lower rate's band, and nothing above the band.
    Raises RequestError for samples that are not mono finite floats, and for rates outside 1 kHz to 768 kHz.
    """
    checked = check_samples(samples)
    for name, rate in (("from_rate", from_rate), ("to_rate", to_rate)):
        if rate not in _RATES:
            raise RequestError(f"{name} is {rate} Hz; it must be between {_RATES[0]} and {_RATES[-1]}.")
    if from_rate == to_rate:
        return checked

    # Blocks of whole seconds have a whole number of samples at any rate. A discrete Fourier transform is periodic, so
    # each block gets a margin (in seconds), which is dropped, for what leaks in from the other end.
    block, margin = 8, 1
    whole = block + 2 * margin
    seconds = block * -(-len(checked) // (block * from_rate))
    padded = np.zeros((seconds + 2 * margin) * from_rate, np.float32)
    padded[margin * from_rate :][: len(checked)] = checked
    result = np.empty(seconds * to_rate, np.float32)
    gain = _low_pass(min(from_rate, to_rate) / 2, whole) * (to_rate / from_rate)
    for start in range(0, seconds, block):
        piece = padded[start * from_rate : (start + whole) * from_rate]
        spectrum = np.fft.rfft(piece)[: len(gain)] * gain
        resampled = np.fft.irfft(spectrum, whole * to_rate)
        result[start * to_rate : (start + block) * to_rate] = resampled[margin * to_rate : -margin * to_rate]
    return result[: -(-len(checked) * to_rate // from_rate)]


def _low_pass(limit: float, seconds: int) -> NDArray[np.float64]:
    """Return gains of the frequencies 0, 1 / seconds, … up to the limit (Hz): 1, then half a cosine down to 0."""
    frequencies = np.arange(int(limit * seconds) + 1) / seconds
    # A steep edge would ring through the whole block.
    slope = np.clip((limit - frequencies) / (0.05 * limit), 0, 1)
    return 0.5 - 0.5 * np.cos(np.pi * slope)


@dataclass(frozen=True, eq=False)
class Spectrogram:
    """A window of sound as the encoder takes it: `log_mel` values [mel_bins, frames].

    outputs: what a model's encoder returned for it, one `EncoderOutputs`, once it has run. A window may be decoded
    several times, and its encoder takes longer than most of its texts.
    """

    features: NDArray[np.float32]
    outputs: list[Any] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return self.features.shape[1]


def log_mel(samples: ArrayLike, mel_bins: int, seconds: int = 30) -> NDArray[np.float32]:
    """Return Whisper's input, float32 [mel_bins, 100 * seconds], for mono floats [N] at 16 kHz, between -1 and 1.

    Shorter sound is padded with silence, longer sound is cut off. Whisper has 80 mel bins, from large-v3 on 128.
    A value is (log10(power) + 4) / 4, where power is clipped to 80 dB below the loudest value, so that values span 2 at
    most. Raises RequestError for samples that are empty, not floats, not mono or not finite.

    Source: arXiv 2212.04356, section 2.2; `WhisperFeatureExtractor` of transformers.
    """
    checked = check_samples(samples)
    for name, value in (("mel_bins", mel_bins), ("seconds", seconds)):
        if value < 1:
            raise RequestError(f"{name} is {value}; it must be at least 1.")

    sound = np.zeros(seconds * SAMPLE_RATE, np.float32)
    kept = checked[: len(sound)]
    sound[: len(kept)] = kept
    return _log_mel_of(sound, mel_bins)


def log_mel_whole(samples: ArrayLike, mel_bins: int) -> NDArray[np.float32]:
    """Return `log_mel` of a whole recording, neither padded nor cut: float32 [mel_bins, N // HOP].

    Values are clipped below the loudest of the recording. It must be longer than half a WINDOW. Errors: as `log_mel`.
    """
    return _log_mel_of(check_samples(samples), mel_bins)


def _log_mel_of(sound: Samples, mel_bins: int) -> NDArray[np.float32]:
    # The middle of frame i is sample i * HOP; one more frame would fit at the end, but Whisper drops it.
    mirrored = np.pad(sound, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, WINDOW)[::HOP][: len(sound) // HOP]  # [frames, WINDOW]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)  # periodic: sample WINDOW would be 0 again
    levels = np.empty((mel_bins, len(frames)))
    for start in range(0, len(frames), _BLOCK):
        # float64: power 80 dB below a loud tone must not be lost in the rounding of the transform.
        spectrum = np.fft.rfft(frames[start : start + _BLOCK] * hann)  # [frames, frequencies]
        power = spectrum.real**2 + spectrum.imag**2
        mel = mel_filters(mel_bins) @ power.T  # [mel_bins, frames]
        levels[:, start : start + _BLOCK] = np.log10(np.maximum(mel, 1e-10))
    levels = np.maximum(levels, levels.max() - 8)
    return ((levels + 4) / 4).astype(np.float32)


@cache
def mel_filters(mel_bins: int) -> NDArray[np.float64]:
    """Return weights [mel_bins, 201] that sum the frequencies of a frame, 0 to 8 kHz, into mel bins; read-only.

    Bin i is a triangle that rises from corner i to corner i + 1 and falls to corner i + 2; the corners are equally far
    apart in mel. Its area over the frequencies (Hz) is 1, so that white noise gives the same power in every bin.
    """
    frequencies = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    highest = 15 + 27 * np.log(8) / np.log(6.4)  # 8 kHz in mel
    corners = _mel_to_hertz(np.linspace(0, highest, mel_bins + 2))[:, None]
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    filters: NDArray[np.float64] = np.maximum(np.minimum(rising, falling), 0) * (2 / (high - low))
    filters.setflags(write=False)  # the cache hands the same array to everyone
    return filters


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert mel to Hz as Slaney's Auditory Toolbox (1998): linear to mel 15 (1 kHz), then 27 mel per factor 6.4."""
    return np.where(mel > 15, 1000 * 6.4 ** ((mel - 15) / 27), 1000 * mel / 15)


def check_samples(samples: ArrayLike) -> Samples:
    """Return mono sound as float32 [N]. Raises RequestError for anything else."""
    array = np.asarray(samples)
    if array.ndim != 1:
        raise RequestError(f"the samples have shape {list(array.shape)}; they must be mono, [N]. Average the channels.")
    if array.size == 0:
        raise RequestError("there is no sound: the array of samples is empty.")
    if not np.issubdtype(array.dtype, np.floating):
        raise RequestError(
            f"the samples are {array.dtype}; they must be floats between -1 and 1. Divide int16 samples by 32768."
        )
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are reported as such
        converted = array.astype(np.float32, copy=False)
    if not np.isfinite(converted).all():
        raise RequestError("some samples are NaN or infinite; they must be between -1 and 1.")
    return converted
