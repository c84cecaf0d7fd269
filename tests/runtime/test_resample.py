"""The resize in numpy against Pillow: the same bits, for every filter, larger and smaller, down to one pixel."""

import numpy as np
import pytest
from PIL import Image

from edgeformer.runtime.media.pictures import resample
from edgeformer.runtime.media.pictures.processors import processor

SIZES = [
    ((1, 1), (7, 5)), ((1, 9), (4, 4)), ((9, 1), (1, 30)), ((33, 47), (16, 16)), ((16, 16), (33, 47)),
    ((224, 224), (224, 224)), ((224, 300), (224, 224)), ((301, 199), (224, 224)), ((37, 600), (64, 48)),
    ((500, 20), (24, 24)), ((3, 2), (224, 224)), ((719, 1279), (96, 128)),
]  # fmt: skip
FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


def picture(height, width, kind):
    random = np.random.default_rng((height, width))
    if kind == "noise":
        return random.integers(0, 256, (height, width, 3), np.uint8)
    if kind == "edges":  # black and white overshoot with bicubic and lanczos
        return random.integers(0, 2, (height, width, 3), np.uint8) * 255
    ramp = np.add.outer(np.arange(height), np.arange(width)) % 256
    return np.repeat(ramp.astype(np.uint8)[..., None], 3, 2)


@pytest.mark.parametrize("kind", ["noise", "edges", "ramp"])
@pytest.mark.parametrize("name", FILTERS)
def test_numpy_gives_the_bits_of_pillow(name, kind):
    for given, wanted in SIZES:
        pixels = picture(*given, kind)
        theirs = Image.fromarray(pixels).resize(wanted[::-1], Image.Resampling[name.upper()])
        assert np.array_equal(resample.resize(pixels, *wanted, name), np.asarray(theirs)), (given, wanted)


def test_the_comparison_sees_another_filter():
    pixels = picture(33, 47, "noise")
    results = {name: resample.resize(pixels, 16, 16, name).tobytes() for name in FILTERS}
    assert len(set(results.values())) == len(FILTERS)


def test_numpy_resizes_where_pillow_is_not_installed(monkeypatch):
    pixels = picture(60, 40, "noise")
    with_pillow = processor.resized(pixels, (20, 30), "bicubic")
    monkeypatch.setattr(processor, "find_spec", lambda name: None)
    monkeypatch.setattr(Image, "fromarray", None)
    assert np.array_equal(processor.resized(pixels, (20, 30), "bicubic"), with_pillow)
