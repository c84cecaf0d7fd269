"""The op edgeformer::Int8CachedAttention agrees with its function, runs in exported graphs and refuses wrong inputs."""

import numpy as np
import pytest
from test_cached_attention import CASES, HEAD_DIM, KV_HEADS, VARIANTS, graph_of, inputs_of
from test_mat_mul_n_bits import session_of

from edgeformer.contract.ops import INT8_CACHE
from edgeformer.export import export_model
from edgeformer.export.lower.ort.kernels.kernel_nodes import INT8_ATTENTION
from edgeformer.runtime import load
from edgeformer.runtime.sessions import session
from edgeformer.runtime.sessions.session import onnxruntime_errors

CHANNELS = (1, KV_HEADS, 1, HEAD_DIM)
SOME_VARIANTS = ("packed and rotated", "window", "bias and sinks")


def int8_graph(feeds, **attributes):
    return graph_of(feeds, kernel=INT8_ATTENTION, fixed=INT8_CACHE, **attributes)


def int8_inputs_of(valid, tokens, **options):
    """Inputs with a cache of integers. Scales clip numbers beyond two standard deviations in some channels."""
    feeds, random = inputs_of(valid, tokens, **options), np.random.default_rng(1)
    for name in ("past_key", "past_value"):
        feeds[name] = random.integers(-128, 128, feeds[name].shape, np.int8)
    scales = {name: random.uniform(0.016, 0.03, CHANNELS).astype(np.float32) for name in ("k_scale", "v_scale")}
    return feeds | scales


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", SOME_VARIANTS)
def test_the_kernel_agrees_with_the_function(library, case, variant):
    (where, options), (changes, attributes) = CASES[case], VARIANTS[variant]
    feeds = int8_inputs_of(*where, **options, **changes)
    graph = int8_graph(feeds, **attributes)
    expected, found = (session.run(None, feeds) for session in (session_of(graph), session_of(graph, library)))
    for row, valid in enumerate(where[0]):
        past = 0 if where[1] == max(*where[0], where[1]) else valid - where[1]
        for cache, of_function in zip(found[1:], expected[1:], strict=True):
            assert (cache.dtype, cache.shape) == (np.int8, of_function.shape)
            np.testing.assert_array_equal(cache[row, :, :valid], of_function[row, :, :valid])
        np.testing.assert_allclose(found[0][row, : valid - past], expected[0][row, : valid - past], atol=2e-5)
    for name in ("k_scale", "v_scale"):
        other = session_of(graph, library).run(None, feeds | {name: feeds[name] * 1.1})[0]
        assert np.abs(other - expected[0])[0, -1].max() > 1e-3, "a comparison that cannot fail"


WRONG = {
    "scales of other heads": ({"k_scale": np.ones((1, KV_HEADS + 1, 1, HEAD_DIM), np.float32)}, "k_scale has"),
    "one scale of values": ({"v_scale": np.ones(1, np.float32)}, "v_scale has the shape"),
    "a cache of another head_dim": ({"past_value": np.zeros((1, KV_HEADS, 128, 16), np.int8)}, "past_value has"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_inputs_are_errors(library, fault):
    changes, message = WRONG[fault]
    feeds = int8_inputs_of([100], 1, capacity=128)
    session = session_of(int8_graph(feeds), library)
    session.run(None, feeds)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::Int8CachedAttention: {message}"):
        session.run(None, feeds | changes)


def test_scales_that_are_missing_are_an_error(library):
    feeds = int8_inputs_of([100], 1, capacity=128)
    del feeds["v_scale"]
    with pytest.raises(onnxruntime_errors(), match="edgeformer::Int8CachedAttention: v_scale is missing"):
        session_of(int8_graph(feeds), library).run(None, feeds)


def test_a_cache_of_floats_is_refused_when_the_session_is_opened(library):
    feeds = int8_inputs_of([100], 1, capacity=128)
    feeds["past_key"] = feeds["past_key"].astype(np.float32)
    with pytest.raises(onnxruntime_errors(), match="Int8CachedAttention"):
        session_of(int8_graph(feeds), library)


def test_a_graph_with_an_int8_cache_runs_kernels_alone(installed, library, tmp_path, monkeypatch):
    """The body has the scales; the kernel's logits are as near to those of the body as with a cache of floats."""
    bundle = export_model("tiny-llama", tmp_path / "int8", precision="int4", cache_precision="int8", verify=None).path
    without = load(bundle, "cpu", kernels=False).forward(range(5, 45))
    installed(library)
    monkeypatch.setattr(session, "usable_cores", lambda: 2)  # tests that run side by side have one each
    model = load(bundle, "cpu", threads=2)
    assert "Int8CachedAttention ×" in model.kernels.describe()
    assert "threads of their own" in model.kernels.describe()
    found = model.forward(range(5, 45))
    assert 0 < np.sqrt(((found - without) ** 2).mean() / (without**2).mean()) < 0.05
