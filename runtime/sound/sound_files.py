"""Read sound files: plain PCM WAV with the standard library, all others with soundfile (extra `audio`).

    samples = load_audio("speech.mp3")      # mono, 16 kHz

A plain WAV file gives the same samples with and without the extra. Which parser of libsndfile sees a file is decided
by the file's first bytes, and only those of common formats are let through.
"""

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import MissingDependencyError, RequestError, require
from edgeformer.runtime.sound.audio import SAMPLE_RATE, Samples, resample

MOST_SAMPLES = 1 << 29
"""Samples per channel of a compressed file at most: 3 hours at 48 kHz, 2 GiB of floats. What a file says of its length
is not believed, and a few megabytes of FLAC hold days of silence."""

_BLOCK = 1 << 20
"""Samples of all channels that are decoded at a time: 4 MiB."""

_UNKNOWN_FRAMES = 1 << 62
"""Samples that libsndfile states, or more, for a file that does not say how many it has."""

_STARTS = {
    b"RIFF": "WAV", b"RIFX": "WAV", b"RF64": "WAV", b"riff": "WAV", b"fLaC": "FLAC", b"OggS": "OGG", b"ID3": "MP3",
    b"FORM": "AIFF",
}  # fmt: skip

_CONVERT = "Convert it first, for instance with: ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le speech.wav"


def load_audio(path: str | Path) -> Samples:
    """Read a sound file as mono samples [N] at 16 kHz. Raises RequestError as `read_audio` and `resample` do."""
    return resample(*read_audio(path))


def read_audio(path: str | Path) -> tuple[Samples, int]:
    """Return the samples [N] and sample rate (Hz) of a sound file.

    Raises RequestError if the file cannot be read, and as `decode_audio` does.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from error
    return decode_audio(content, str(path))


def decode_audio(content: bytes, name: str, most_samples: int = MOST_SAMPLES) -> tuple[Samples, int]:
    """Return the samples [N] and sample rate (Hz) of a file of WAV, FLAC, OGG (Vorbis, Opus), MP3 or AIFF.

    Channels are averaged. name: of the file, for errors. most_samples: per channel, here or at 16 kHz, above which a
    file that is not plain WAV is refused. A WAV file that ends before its header says, as a pipe or an aborted
    recording leaves it, is read as far as it goes.

    Raises RequestError for a file of another format, a damaged one, and one that is too long or holds no samples;
    where soundfile is not installed, RequestError that names the extra for all but 8, 16, 24 or 32-bit PCM WAV.
    """
    kind = next((kind for start, kind in _STARTS.items() if content.startswith(start)), None)
    if kind is None and content[:1] == b"\xff" and content[1:2] >= b"\xe0":  # the header of an MPEG frame
        kind = "MP3"
    if kind is None:
        raise RequestError(f"{name} is not a sound file of WAV, FLAC, OGG, MP3 or AIFF. {_CONVERT}")
    reason = f"it is {kind}"
    if kind == "WAV":
        try:
            found = _plain_wav(content)
        except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError: a chunk that is longer than the file
            found, reason = None, str(error) or "damaged or cut off"
        if found is not None:
            return _not_empty(*found, name)
    try:
        soundfile: Any = require("soundfile", "audio")
    except (MissingDependencyError, OSError) as error:  # OSError: the system lacks libsndfile
        raise RequestError(
            f"{name} is not a plain PCM WAV file ({reason}), and without soundfile no other is read. Install it with: "
            f"pip install 'edgeformer[audio]'. {_CONVERT}"
        ) from error
    try:
        found = _decoded(soundfile, content, name, most_samples)
    except soundfile.SoundFileError as error:
        told = getattr(error, "error_string", str(error)).rstrip(".")
        raise RequestError(
            f"{name} cannot be read as {kind}: {told}. It may be damaged or cut off. {_CONVERT}"
        ) from error
    return _not_empty(*found, name)


def _not_empty(samples: Samples, rate: int, name: str) -> tuple[Samples, int]:
    if len(samples) == 0:
        raise RequestError(f"{name} holds no samples.")
    return samples, rate


class _Content(io.BytesIO):
    """The bytes of a file. A damaged one may ask for a place before its start, and gets the start: an exception would
    be printed by soundfile, since libsndfile cannot pass it on."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return super().seek(0)


def _decoded(soundfile: Any, content: bytes, name: str, most_samples: int) -> tuple[Samples, int]:
    """Return samples [N] and rate by soundfile, in blocks: memory follows what is decoded, not what is declared."""
    blocks: list[Samples] = []
    read = 0
    with soundfile.SoundFile(_Content(content)) as file:
        # Resampling makes a file of a lower rate longer.
        most = most_samples if file.samplerate >= SAMPLE_RATE else most_samples * file.samplerate // SAMPLE_RATE
        if most < file.frames < _UNKNOWN_FRAMES:
            raise _too_long(name, most, file.samplerate)
        step = max(_BLOCK // file.channels, 1)
        while len(block := file.read(step, dtype="float32", always_2d=True)):
            read += len(block)
            if read > most:
                raise _too_long(name, most, file.samplerate)
            blocks.append(block.mean(axis=1))
        rate: int = file.samplerate
    samples: NDArray[np.float32] = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    if not np.isfinite(samples).all():
        raise RequestError(f"{name} holds samples that are NaN or infinite.")
    return samples, rate


def _too_long(name: str, most: int, rate: int) -> RequestError:
    length = f"{most:,} samples ({most / rate / 3600:.2g} hours at {rate} Hz)"
    return RequestError(f"{name} holds more than {length}. Split it into shorter recordings.")


def _plain_wav(content: bytes) -> tuple[Samples, int] | None:
    """Return the samples [N] and rate of 8, 16, 24 or 32-bit PCM; None for other kinds of WAV."""
    with wave.open(io.BytesIO(content)) as file:
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
        # Python 3.15 opens files of floats too, whose bytes would pass for 32-bit integers.
        get_format = getattr(file, "getformat", None)
        if width > 4 or (get_format is not None and get_format() == 3):
            return None
        data = file.readframes(file.getnframes())
    frames = len(data) // (channels * width)
    samples = _from_pcm(data[: frames * channels * width], width)
    return samples.reshape(frames, channels).mean(axis=1), rate


def _from_pcm(data: bytes, width: int) -> Samples:
    """Convert little-endian integers of `width` bytes to samples [N]; channels stay interleaved."""
    values: NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(-1, width)
    if width == 1:
        values = values ^ np.uint8(0x80)  # 8-bit samples are unsigned: 128 is silence
    # The bytes of any width become the upper bytes of 32 bits, so that one scale serves all.
    integers = np.zeros((len(values), 4), np.uint8)
    integers[:, 4 - width :] = values
    return integers.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
