"""int4 with arithmetic in float16, the form for browsers whose GPU has it: float16 kernels of the CPU run the graph.

No adapter of the tests has float16. The limits here are tighter than those of verification, which grow with errors of
eager PyTorch in float16.
"""

import pytest
from wrong_kernels import plant

from edgeformer.export import export_model, verify

LIMITS = {"prefill: max error": 1e-2, "prefill: mean KL": 1e-4, "steps: max error": 1e-2, "steps: mean KL": 1e-4}
"""Largest error of a logit over the largest logit, and KL divergence in nats, beside float64 with the same integers."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The preset tiny-llama as `--deployment web --provider webgpu --arithmetic fp16` exports it."""
    options = {"deployment": "web", "provider": "webgpu", "arithmetic": "fp16"}
    return export_model("tiny-llama", tmp_path_factory.mktemp("q4f16") / "bundle", verify=None, **options).path


def figures(bundle):
    """Return whether float16 kernels of the CPU pass verification, and the figures of a bundle."""
    report = verify(bundle, mode="quick", provider="cpu")
    assert report.environment["provider"] == "cpu"
    return report.passed, {check.name: check.value for check in report.checks}


def test_float16_kernels_are_right(bundle):
    passed, found = figures(bundle)
    assert passed and {name: found[name] for name, limit in LIMITS.items() if found[name] > limit} == {}
    assert found["prefill: top-1"] == 1


def test_a_wrong_op_in_float16_is_found(bundle, monkeypatch):
    """A tanh where the graph says sigmoid, in one layer; clients' graphs are checked after those without rounding."""
    plant(monkeypatch, "a substituted op")
    _, found = figures(bundle)
    assert found["int8 activations, prefill: mean KL"] > 1000 * LIMITS["prefill: mean KL"]
    assert found["int8 activations, prefill: max error"] > 10 * LIMITS["prefill: max error"]
