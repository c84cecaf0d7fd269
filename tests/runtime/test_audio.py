"""The spectrogram is that of transformers' WhisperFeatureExtractor; sample rates keep the sound."""

import time

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from edgeformer.errors import RequestError
from edgeformer.runtime.media.sound.audio import log_mel, mel_filters, resample

RATE = 16_000

# With numpy, transformers computes as this package does, but keeps the spectrum in complex64.
TOLERANCE = 1e-6
# With torch it computes in float32. Its rounding shows where little stands beside much: 80 dB below a pure tone, or
# where a lone click meets the end of the window.
TORCH_TOLERANCE = 1e-5
TORCH_CONTRAST_TOLERANCE = 2e-4


def _noise(seconds, amplitude=0.1, seed=0):
    samples = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
    return (amplitude * samples).astype(np.float32)


def _tone(frequency, seconds, rate=RATE, amplitude=0.9):
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def _sweep(seconds, rate, highest):
    """A tone that rises from 0 Hz to the highest frequency, in float64."""
    time_ = np.arange(round(seconds * rate)) / rate
    return np.sin(np.pi * highest / seconds * time_**2)


def _decibels(samples):
    return 20 * np.log10(np.abs(samples).max() + 1e-30)


EVEN = {
    "noise": _noise(30),
    "quiet noise": _noise(20, amplitude=1e-4, seed=1),
    "0.1 s": _noise(0.1, seed=2),
    "35 s": _noise(35, seed=3),
    "one sample": np.ones(1, np.float32),
    "silence": np.zeros(RATE, np.float32),
    "constant": np.full(RATE, 0.5, np.float32),
}
CONTRASTS = {
    "440 Hz": _tone(440, 30),
    "7 kHz": _tone(7000, 10),
    "clicks": (np.arange(30 * RATE) % 9001 == 0).astype(np.float32),
    "sweep": _sweep(30, RATE, 8000).astype(np.float32),
}


@pytest.fixture(scope="module", params=[80, 128])
def extractor(request):
    return WhisperFeatureExtractor(feature_size=request.param)


def _transformers(extractor, samples):
    return extractor(samples, sampling_rate=RATE)["input_features"][0]


def _transformers_numpy(extractor, samples):
    fitted = np.zeros(30 * RATE, np.float32)
    fitted[: len(samples)] = samples[: len(fitted)]
    return extractor._np_extract_fbank_features([fitted], "cpu")[0]


@pytest.mark.parametrize("name", [*EVEN, *CONTRASTS])
def test_the_spectrogram_is_that_of_transformers(name, extractor):
    samples = (EVEN | CONTRASTS)[name]
    features = log_mel(samples, extractor.feature_size)
    assert features.shape == (extractor.feature_size, 3000)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, _transformers_numpy(extractor, samples), rtol=0, atol=TOLERANCE)
    tolerance = TORCH_CONTRAST_TOLERANCE if name in CONTRASTS else TORCH_TOLERANCE
    np.testing.assert_allclose(features, _transformers(extractor, samples), rtol=0, atol=tolerance)


def test_the_filters_are_those_of_transformers(extractor):
    filters = mel_filters(extractor.feature_size)
    np.testing.assert_allclose(filters, extractor.mel_filters.T, rtol=0, atol=1e-12)
    assert filters is mel_filters(extractor.feature_size)
    with pytest.raises(ValueError, match="read-only"):
        filters[0, 0] = 1


def _other_filters(**options):
    usual = {"norm": "slaney", "mel_scale": "slaney", "max_frequency": 8000.0}
    return mel_filter_bank(201, 80, 0.0, sampling_rate=RATE, **{**usual, **options})


@pytest.mark.parametrize(
    "change",
    [
        {"hop_length": 159},
        {"n_fft": 398},
        {"mel_filters": _other_filters(mel_scale="htk")},
        {"mel_filters": _other_filters(norm=None)},
        {"mel_filters": _other_filters(max_frequency=7900.0)},
    ],
    ids=["hop", "window", "scale", "norm", "range"],
)
def test_the_comparison_notices_another_spectrogram(change):
    # Negative control.
    other = WhisperFeatureExtractor()
    for name, value in change.items():
        setattr(other, name, value)
    if "n_fft" in change:
        other.mel_filters = mel_filter_bank(200, 80, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    difference = log_mel(EVEN["noise"], 80) - _transformers(other, EVEN["noise"])[:, :3000]
    assert np.abs(difference).max() > 1000 * TORCH_TOLERANCE


def test_sound_after_the_last_second_is_cut_off():
    samples = EVEN["35 s"]
    np.testing.assert_array_equal(log_mel(samples, 80), log_mel(samples[: 30 * RATE], 80))
    assert (log_mel(samples, 80) != log_mel(samples[: 30 * RATE - 1], 80)).any()


def test_a_shorter_window_has_fewer_frames():
    samples = _noise(5)
    extractor = WhisperFeatureExtractor(chunk_length=2)
    features = log_mel(samples, 80, seconds=2)
    assert features.shape == (80, 200)
    np.testing.assert_allclose(features, _transformers(extractor, samples), rtol=0, atol=TORCH_TOLERANCE)


def test_float64_samples_give_what_float32_samples_give():
    samples = _noise(1)
    np.testing.assert_array_equal(log_mel(samples.astype(np.float64), 80), log_mel(samples, 80))
    np.testing.assert_array_equal(log_mel(samples.tolist(), 80), log_mel(samples, 80))


def test_the_samples_are_left_alone():
    samples = _noise(1)
    before = samples.copy()
    log_mel(samples, 80)
    resample(samples, 44_100)
    np.testing.assert_array_equal(samples, before)


def test_thirty_seconds_take_less_than_100_ms_of_one_core():
    log_mel(EVEN["noise"], 80)
    times = []
    for _ in range(5):
        start = time.thread_time()
        log_mel(EVEN["noise"], 80)
        times.append(time.thread_time() - start)
    assert min(times) < 0.1


@pytest.mark.parametrize("function", [lambda samples: log_mel(samples, 80), lambda samples: resample(samples, 44_100)])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(0, np.float32), "there is no sound: the array of samples is empty."),
        (np.zeros((2, 100), np.float32), "shape [2, 100]; they must be mono, [N]. Average the channels."),
        (np.float32(0), "shape []; they must be mono"),
        (np.zeros(100, np.int16), "int16; they must be floats between -1 and 1. Divide int16 samples by 32768."),
        (np.zeros(100, np.complex64), "complex64; they must be floats"),
        (np.array([0, np.nan], np.float32), "some samples are NaN or infinite"),
        (np.array([0, -np.inf], np.float32), "some samples are NaN or infinite"),
        (np.array([0, 1e300]), "some samples are NaN or infinite"),
    ],
    ids=["empty", "stereo", "scalar", "int16", "complex", "nan", "inf", "huge"],
)
def test_what_is_no_mono_sound_is_refused(function, samples, message):
    with pytest.raises(RequestError) as error:
        function(samples)
    assert message in str(error.value)


def test_sizes_below_one_are_refused():
    with pytest.raises(RequestError, match="mel_bins is 0; it must be at least 1."):
        log_mel(_noise(1), 0)
    with pytest.raises(RequestError, match="seconds is -1; it must be at least 1."):
        log_mel(_noise(1), 80, seconds=-1)


# The first and last 0.1 s of a tone that begins and ends at once have other frequencies too, which are rightly cut off.
INNER = slice(1600, -1600)


@pytest.mark.parametrize("rate", [8000, 11_025, 12_000, 22_050, 44_100, 48_000, 48_001, 96_000])
def test_a_tone_of_1_khz_stays_as_it_is(rate):
    resampled = resample(_tone(1000, 20, rate), rate)
    assert resampled.shape == (20 * RATE,)
    assert resampled.dtype == np.float32
    assert _decibels((resampled - _tone(1000, 20))[INNER]) < -120


@pytest.mark.parametrize("rate", [44_100, 48_000])
@pytest.mark.parametrize("frequency", [8050, 9000, 12_000, 15_000, 20_000])
def test_a_tone_that_16_khz_cannot_hold_is_removed(rate, frequency):
    # Taking every third sample, or interpolating, would fold it to below 8 kHz.
    assert _decibels(resample(_tone(frequency, 20, rate), rate)[INNER]) < -100


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_a_sweep_stays_to_95_percent_of_the_band_then_vanishes(rate):
    seconds, highest = 20, 20_000
    resampled = resample(_sweep(seconds, rate, highest), rate)
    expected = _sweep(seconds, RATE, highest)
    at = np.arange(len(expected)) / RATE * (highest / seconds)  # Hz at each sample
    kept, removed = (at > 200) & (at < 7400), (at > 8200) & (at < 19_800)
    assert _decibels((resampled - expected)[kept]) < -60
    assert _decibels(resampled[removed]) < -60


def test_there_are_no_seams_between_blocks():
    # The sound is cut into blocks of 8 s: shifted by 3 s, it has its seams elsewhere.
    sound = _noise(60, seed=5)[: 20 * 44_100]
    padded = np.concatenate([np.zeros(3 * 44_100, np.float32), sound])
    shifted = resample(padded, 44_100)[3 * RATE :]
    assert _decibels(resample(sound, 44_100) - shifted) < -100


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 1), (3, 2), (44_100, RATE), (44_101, RATE + 1)])
def test_the_length_is_rounded_up(count, expected):
    assert len(resample(np.ones(count, np.float32), 44_100)) == expected


def test_the_same_rate_changes_nothing():
    np.testing.assert_array_equal(resample(_noise(1), RATE), _noise(1))


def test_up_and_down_again_is_what_was():
    sound = resample(_noise(10), RATE, 8000)  # nothing above 4 kHz
    again = resample(resample(sound, 8000, 48_000), 48_000, 8000)
    quiet = resample(sound, 8000, 7000)  # what both transitions leave as it is
    assert _decibels((resample(again, 8000, 7000) - quiet)[INNER]) < -100


@pytest.mark.parametrize("rate", [0, -16_000, 999, 768_001, 4_000_000_000])
def test_rates_that_no_sound_has_are_refused(rate):
    with pytest.raises(RequestError, match=f"from_rate is {rate} Hz; it must be between 1000 and 768000."):
        resample(_noise(0.1), rate)
    with pytest.raises(RequestError, match=f"to_rate is {rate} Hz"):
        resample(_noise(0.1), RATE, rate)
