"""A random model of every family, verified on WebGPU: on an adapter of this machine, or on one in software.

Verification compares the graphs with float64 PyTorch. That PyTorch computes what transformers does is shown by the
tests of parity beside this file; they make the models, too.
"""

import pytest
from encoder_rows import ENCODERS
from rows import FAMILIES, WITH_ALL_OPS, fields_of
from seq2seq_rows import FAMILIES as PAIRS
from test_encoder_parity import make as make_encoder
from test_seq2seq_parity import make_transformer
from webgpu_adapter import adapter_or_skip

from edgeformer.export import export_model, verify

QUANTIZED = sorted(WITH_ALL_OPS)
"""Families that have every op between them, whose weights are stored as integers, too."""

pytestmark = pytest.mark.slow  # a driver in software compiles each kernel for seconds
adapter = pytest.fixture(scope="module", autouse=True)(adapter_or_skip)


def failures(folder, bundle, precision="fp32", **options):
    """Export a model for WebGPU, run it there, and return what verification finds wrong."""
    export_model(folder, bundle, provider="webgpu", precision=precision, verify=None, **options)
    report = verify(bundle, folder, mode="quick")
    assert report.environment["provider"] == "webgpu" and report.checks
    return [str(check) for check in report.failures()]


def make_decoder(make_model, family):
    """Save the first random model of a family; return its folder and the options that export it."""
    row, name = FAMILIES[family], next(iter(FAMILIES[family].models))
    return make_model(family, **fields_of(family, name), **row.stored.get(name, {})), row.exported.get(name, {})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_is_right(family, make_model, tmp_path):
    folder, options = make_decoder(make_model, family)
    assert failures(folder, tmp_path / "bundle", **options) == []


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize("family", [family for family in QUANTIZED if family in FAMILIES])
def test_integers_are_right(family, precision, make_model, tmp_path):
    folder, options = make_decoder(make_model, family)
    assert failures(folder, tmp_path / "bundle", precision, **options) == []


@pytest.mark.parametrize("family", PAIRS)
def test_an_encoder_decoder_is_right(family, make_model, tmp_path):
    row = PAIRS[family]
    options = row.sizes | next(iter(row.models.values()))
    if family == "transformer":
        (tmp_path / "model").mkdir()
        folder = make_transformer(tmp_path / "model", options, 0)
    else:
        folder = make_model(family, auto=row.auto, **options)
    assert failures(folder, tmp_path / "bundle") == []


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_is_right(family, tmp_path):
    (tmp_path / "model").mkdir()
    model = make_encoder(family, next(iter(ENCODERS[family].models)), 0, tmp_path / "model")
    assert failures(model.folder, tmp_path / "bundle") == []
