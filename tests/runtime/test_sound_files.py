"""Sound files of every format that is read give the sound that was written, and damaged ones one clear error."""

import contextlib
import io
import random
import struct
import sys
import tracemalloc
import wave

import numpy as np
import pytest
import soundfile

from edgeformer.errors import RequestError
from edgeformer.runtime.media.sound import sound_files
from edgeformer.runtime.media.sound.sound_files import decode_audio, load_audio, read_audio

RATE = 16_000


def _tone(frequency, seconds, rate=RATE, amplitude=0.9):
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def _decibels(samples):
    return 20 * np.log10(np.abs(samples).max() + 1e-30)


# The first and last 0.1 s of a tone that begins and ends at once have other frequencies too, which are rightly cut off.
INNER = slice(1600, -1600)


@pytest.fixture
def without_soundfile(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)


def _write(path, data, channels=1, width=2, rate=RATE):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def _pcm(samples, width):
    """Integers of `width` bytes, little-endian, of floats; 8 bits have no sign."""
    limit = 2 ** (8 * width - 1)
    integers = [int(np.clip(round(float(value) * limit), -limit, limit - 1)) for value in samples]
    if width == 1:
        return bytes(value + 128 for value in integers)
    return b"".join(value.to_bytes(width, "little", signed=True) for value in integers)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_of_pcm_gives_the_same_sound(width, tmp_path):
    sound = _tone(440, 0.1)
    samples, rate = read_audio(_write(tmp_path / "tone.wav", _pcm(sound, width), width=width, rate=22_050))
    assert rate == 22_050
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, sound, rtol=0, atol=max(0.51 / 2 ** (8 * width - 1), 6e-8))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_the_ends_of_the_range(width, tmp_path):
    samples, _ = read_audio(_write(tmp_path / "ends.wav", _pcm([-1, 0, 0.5], width), width=width))
    np.testing.assert_array_equal(samples, np.array([-1, 0, 0.5], np.float32))


def test_channels_are_averaged(tmp_path):
    interleaved = np.array([[0.5, -0.5], [0.5, 0.25], [-1, -1]]).reshape(-1)
    for width in (1, 2, 3, 4):
        samples, _ = read_audio(_write(tmp_path / "stereo.wav", _pcm(interleaved, width), channels=2, width=width))
        np.testing.assert_array_equal(samples, np.array([0, 0.375, -1], np.float32))


def test_a_file_of_another_rate_is_loaded_at_16_khz(tmp_path):
    stereo = np.repeat(_tone(1000, 1, 44_100, amplitude=0.5), 2)
    sound = load_audio(str(_write(tmp_path / "tone.wav", _pcm(stereo, 2), channels=2, rate=44_100)))
    assert sound.shape == (RATE,)
    # 16 bits leave noise 96 dB below full scale.
    assert _decibels((sound - _tone(1000, 1, amplitude=0.5))[INNER]) < -85


def test_a_cut_off_file_is_read_as_far_as_it_goes(tmp_path):
    path = _write(tmp_path / "cut.wav", _pcm([0.5, 0.25, 0.125, -0.5], 2), channels=2)
    path.write_bytes(path.read_bytes()[:-1])
    samples, _ = read_audio(path)
    np.testing.assert_array_equal(samples, np.array([0.375], np.float32))


def test_a_header_written_before_the_length_was_known(tmp_path):
    # As ffmpeg writes to a pipe.
    path = _write(tmp_path / "pipe.wav", _pcm([0.5, 0.25], 2))
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff" * 4
    path.write_bytes(content)
    np.testing.assert_array_equal(read_audio(path)[0], np.array([0.5, 0.25], np.float32))


def _header(kind, width, size=40, rate=RATE):
    """A WAV file of zeros whose format has the number `kind`."""
    layout = struct.pack("<HHIIHH", kind, 1, rate, rate * width, width, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout + b"data" + struct.pack("<I", size) + bytes(size)
    return b"RIFF" + struct.pack("<I", len(body)) + body


# Loudness (dB) of what a format changes in a tone; those that lose nothing round to 16 bits, or not at all.
WRITTEN = {
    ("WAV", "FLOAT"): -140, ("WAV", "DOUBLE"): -140, ("WAV", "ULAW"): -30, ("WAV", "ALAW"): -30,
    ("WAVEX", "PCM_24"): -120, ("RF64", "PCM_16"): -85, ("W64", "PCM_16"): -85, ("AIFF", "PCM_16"): -85,
    ("FLAC", "PCM_16"): -85, ("FLAC", "PCM_24"): -120, ("OGG", "VORBIS"): -25, ("OGG", "OPUS"): -25,
    ("MP3", "MPEG_LAYER_III"): -25,
}  # fmt: skip


def _encoded(sound, form, subtype, rate=RATE):
    content = io.BytesIO()
    soundfile.write(content, sound, rate, format=form, subtype=subtype)
    return content.getvalue()


@pytest.mark.parametrize(("form", "subtype"), WRITTEN)
def test_other_formats_are_read(form, subtype, tmp_path):
    sound = _tone(440, 2, amplitude=0.5)
    stereo = np.stack([1.5 * sound, 0.5 * sound], axis=1)
    path = tmp_path / "tone"
    path.write_bytes(_encoded(stereo, form, subtype))
    samples, rate = read_audio(path)
    assert (rate, samples.dtype, samples.ndim) == (RATE, np.float32, 1)
    assert _decibels((samples[: len(sound)] - sound)[INNER]) < WRITTEN[form, subtype]
    if form == "FLAC":  # what is compared would differ: a channel alone is not the mean
        assert _decibels((samples - stereo[:, 0])[INNER]) > -20


def test_plain_wav_gives_the_same_with_and_without_soundfile(monkeypatch):
    content = _encoded(_tone(440, 0.1), "WAV", "PCM_16")
    with_it = soundfile.read(io.BytesIO(content), dtype="float32")[0]
    monkeypatch.setitem(sys.modules, "soundfile", None)
    np.testing.assert_array_equal(decode_audio(content, "a.wav")[0], with_it)


def test_blocks_are_joined(monkeypatch):
    content = _encoded(np.stack([_tone(440, 1)] * 2, axis=1), "FLAC", "PCM_16")
    whole = decode_audio(content, "a.flac")[0]
    monkeypatch.setattr(sound_files, "_BLOCK", 999)
    np.testing.assert_array_equal(decode_audio(content, "a.flac")[0], whole)
    assert len(whole) == RATE


def _header(kind, width, size=40, rate=RATE):
    """A WAV file of zeros whose format has the number `kind`."""
    layout = struct.pack("<HHIIHH", kind, 1, rate, rate * width, width, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout + b"data" + struct.pack("<I", size) + bytes(size)
    return b"RIFF" + struct.pack("<I", len(body)) + body


FLAC, MP3, OGG = (
    _encoded(_tone(440, 1), form, subtype)
    for form, subtype in (("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"))
)

DAMAGED = {
    "empty": (b"", "is not a sound file of WAV, FLAC, OGG, MP3 or AIFF. Convert it first, for instance with: ffmpeg"),
    "text": (b"hello", "is not a sound file of WAV, FLAC, OGG, MP3 or AIFF"),
    "no MP3": (b"ID3\x03 this is an MP3", "cannot be read as MP3: "),
    "cut-off header": (_header(1, 2)[:20], "cannot be read as WAV: "),
    # A chunk that is larger than the file it is in.
    "damaged": (_header(1, 2)[:16] + b"\xff" * 4 + _header(1, 2)[20:], "cannot be read as WAV: "),
    "64 bits": (_header(1, 8), "cannot be read as WAV: "),
    "no samples": (_header(1, 2, size=0), "holds no samples."),
    "cut-off FLAC": (FLAC[: len(FLAC) // 2], "cannot be read as FLAC: "),
    "cut-off OGG": (OGG[:20], "cannot be read as OGG: "),
    "cut-off MP3": (MP3[:20], "cannot be read as MP3: "),
    "NaN": (_encoded(np.array([0, np.nan], np.float32), "WAV", "FLOAT"), "holds samples that are NaN or infinite."),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_other_files_are_refused(name, tmp_path):
    content, message = DAMAGED[name]
    path = tmp_path / "file.wav"
    path.write_bytes(content)
    with pytest.raises(RequestError) as error:
        load_audio(path)
    assert str(error.value).startswith(f"{path} {message}")


@pytest.mark.usefixtures("without_soundfile")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (FLAC, "it is FLAC"),
        (MP3, "it is MP3"),
        (OGG, "it is OGG"),
        (_header(6, 1), "unknown format: 6"),
        (_header(1, 8), "it is WAV"),
        (_header(1, 2)[:20], "damaged or cut off"),
    ],
    ids=["FLAC", "MP3", "OGG", "A-law", "64 bits", "cut off"],
)
def test_without_soundfile_other_formats_name_the_extra(content, reason):
    with pytest.raises(RequestError) as error:
        decode_audio(content, "talk")
    expected = (
        f"talk is not a plain PCM WAV file ({reason}), and without soundfile no other is read. Install it with: pip"
    )
    assert str(error.value).startswith(f"{expected} install 'edgeformer[audio]'. Convert it first")


@pytest.mark.usefixtures("without_soundfile")
def test_floats_do_not_pass_for_integers_in_any_python(monkeypatch):
    content = _header(3, 4)
    if not hasattr(wave.Wave_read, "getformat"):
        with pytest.raises(RequestError, match="unknown format: 3"):
            decode_audio(content, "float.wav")
        # As if this were Python 3.15, which opens the file.
        content = _header(1, 4)
        monkeypatch.setattr(wave.Wave_read, "getformat", lambda file: 3, raising=False)
    with pytest.raises(RequestError, match="it is WAV"):
        decode_audio(content, "float.wav")


def test_a_long_file_is_refused_before_it_is_decoded_whole(monkeypatch):
    # Ten minutes of silence in a few kilobytes.
    content = _encoded(np.zeros(600 * RATE, np.int16), "FLAC", "PCM_16")
    assert len(content) < 200_000
    monkeypatch.setattr(sound_files, "_BLOCK", RATE)
    with pytest.raises(
        RequestError, match="talk holds more than 32,000 samples \\(0.00056 hours at 16000 Hz\\). Split it"
    ):
        decode_audio(content, "talk", most_samples=2 * RATE)
    assert len(decode_audio(content, "talk", most_samples=600 * RATE)[0]) == 600 * RATE
    slow = _encoded(np.zeros(600 * 1000, np.int16), "FLAC", "PCM_16", rate=1000)
    with pytest.raises(RequestError, match="talk holds more than 599,999 samples"):
        decode_audio(slow, "talk", most_samples=600 * RATE - 1)


def _declared(content, start, size):
    """A file whose header says that it holds as many samples as its field can."""
    return content[:start] + b"\xff" * size + content[start + size :]


@pytest.mark.parametrize("content", [_declared(FLAC, 22, 4), _declared(_header(3, 4), 40, 4)], ids=["FLAC", "WAV"])
def test_a_declared_length_allocates_nothing(content):
    tracemalloc.start()
    try:
        with contextlib.suppress(RequestError):
            decode_audio(content, "talk")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_mutated_files_end_in_sound_or_in_one_error(capfd):
    seeds = [FLAC, MP3, OGG, _encoded(_tone(440, 0.2), "WAV", "FLOAT"), _encoded(_tone(440, 0.2), "AIFF", "PCM_16")]
    draw, errors = random.Random(0), []
    for case in range(600):
        content = bytearray(seeds[case % len(seeds)])
        for _ in range(draw.choice((1, 4, 20))):
            content[draw.randrange(min(len(content), draw.choice((64, 10**6))))] = draw.randrange(256)
        if draw.random() < 0.3:
            del content[draw.randrange(len(content)) :]
        try:
            assert np.isfinite(decode_audio(bytes(content), "talk", most_samples=10**7)[0]).all()
        except RequestError as error:
            errors.append(str(error))
    assert all(error.startswith("talk ") and len(error) < 400 for error in errors)
    assert 60 < len(errors) < 580
    assert "Traceback" not in capfd.readouterr().err


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(RequestError, match="nowhere.wav cannot be read: No such file or directory."):
        load_audio(tmp_path / "nowhere.wav")
    with pytest.raises(RequestError, match="cannot be read: Is a directory."):
        load_audio(tmp_path)


def test_a_damaged_rate_is_refused(tmp_path):
    path = tmp_path / "rate.wav"
    path.write_bytes(_header(1, 2, rate=0))
    with pytest.raises(RequestError, match="from_rate is 0 Hz"):
        load_audio(path)
