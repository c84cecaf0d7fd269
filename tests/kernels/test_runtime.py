"""The runtime runs edgeformer's kernels where they are installed and fit, and a bundle is the same without them."""

import sys
import tomllib
import types

import numpy as np
import pytest
from build_kernels import KERNELS

from edgeformer.errors import BundleError
from edgeformer.export import export_model
from edgeformer.runtime import kernels, load
from edgeformer.runtime.session import open_session

TOKENS = list(range(5, 45))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("int4") / "bundle"
    export_model("tiny-llama", folder, precision="int4", verify=None)
    return folder


@pytest.fixture
def installed(monkeypatch):
    """Return a function that installs a package for a library, and clears what the runtime remembers of it."""

    def install(library, ops=kernels.OPS):
        package = types.ModuleType("edgeformer_kernels")
        package.OPS, package.VERSION, package.library = ops, "9.9", lambda: library
        monkeypatch.setitem(sys.modules, "edgeformer_kernels", package)
        kernels.find_library.cache_clear()

    monkeypatch.delenv(kernels.SWITCH, raising=False)
    yield install
    kernels.find_library.cache_clear()


def logits(bundle, **options):
    return load(bundle, "cpu", **options).forward(TOKENS)


def exact_logits(bundle):
    """The logits of the same weights when nothing rounds activations: those of a session that does not prepack."""
    session, count = open_session(bundle / "onnx" / "model.onnx", "cpu", prepack=False), len(TOKENS)
    feeds = {"input_ids": np.array([TOKENS]), "attention_mask": np.ones((1, count), np.int64)}
    pasts = [each for each in session.get_inputs() if each.name.startswith("past")]
    feeds |= {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in pasts}
    return session.run(["logits"], feeds)[0][0]


def distance(logits, others):
    return np.sqrt(((logits - others) ** 2).mean() / (others**2).mean())


def test_kernels_run_and_can_be_left_out(bundle, installed, library, monkeypatch):
    installed(library)
    without = logits(bundle, kernels=False)
    monkeypatch.setenv(kernels.SWITCH, "0")
    np.testing.assert_array_equal(logits(bundle), without)
    monkeypatch.delenv(kernels.SWITCH)
    ours = logits(bundle)
    assert not np.array_equal(ours, without)
    # Both round activations alike. Scales as halves change which of them are rounded up, and not by how much they err.
    exact = exact_logits(bundle)
    assert 0 < distance(ours, exact) < 1.2 * distance(without, exact) < 0.1


def test_a_team_of_its_own_computes_the_same(bundle, installed, library, monkeypatch):
    installed(library)
    ours = logits(bundle)
    monkeypatch.setenv(kernels.SWITCH, "team")
    model = load(bundle, "cpu")
    assert model.session.get_session_options().intra_op_num_threads == 1
    np.testing.assert_array_equal(model.forward(TOKENS), ours)


def test_steps_agree_with_the_prompt(bundle, installed, library):
    installed(library)
    model, tokens = load(bundle, "cpu"), TOKENS[:20]
    decoder = model.new_decoder(1, len(tokens))
    steps = [decoder.prefill(0, tokens[:1]).reshape(1, -1).copy()]
    steps += [decoder.decode_one_token([token]).copy() for token in tokens[1:]]
    prompt = model.forward(tokens)
    assert distance(np.concatenate(steps).reshape(prompt.shape), prompt) < 0.05


def test_verification_opens_sessions_without_kernels(bundle, installed):
    installed("/nowhere")  # registering it would fail
    assert open_session(bundle / "onnx" / "model.onnx", "cpu").get_inputs()
    with pytest.raises(BundleError, match="onnxruntime cannot load .*nowhere"):
        open_session(bundle / "onnx" / "model.onnx", "cpu", kernels=True)


def test_a_package_for_other_ops_is_not_used_and_it_is_said(installed):
    installed("/nowhere", ops=kernels.OPS + 1)
    with pytest.warns(UserWarning, match="edgeformer-kernels 9.9 is installed, for version 2 of edgeformer's ops"):
        assert kernels.find_library() is None


def test_without_the_package_there_is_no_library(installed, monkeypatch):
    installed("/nowhere")
    monkeypatch.setitem(sys.modules, "edgeformer_kernels", None)
    kernels.find_library.cache_clear()
    assert kernels.find_library() is None


def test_the_package_of_this_repository_fits():
    source = (KERNELS / "edgeformer_kernels" / "__init__.py").read_text()
    version = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]["version"]
    assert f"OPS = {kernels.OPS}\n" in source
    assert f'VERSION = "{version}"\n' in source
