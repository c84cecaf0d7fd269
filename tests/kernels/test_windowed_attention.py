"""The ops of windowed attention, over every type of cache, agree with their functions, and run in windowed graphs."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from test_cached_attention import fp16_inputs_of, graph_of, inputs_of
from test_int8_attention import int8_inputs_of
from test_mat_mul_n_bits import session_of

from edgeformer.contract.ops import INT8_CACHE
from edgeformer.export import export_model
from edgeformer.export.lower.ort.kernels.kernel_nodes import ATTENTION, FP16_ATTENTION, INT8_ATTENTION
from edgeformer.runtime import load
from edgeformer.runtime.sessions import session
from edgeformer.runtime.sessions.session import onnxruntime_errors

WINDOW, EVICTS = 8, {"sliding_window_cache": 1}
KINDS = {
    "WindowedAttention": (ATTENTION, {}, inputs_of),
    "Fp16WindowedAttention": (FP16_ATTENTION, {}, fp16_inputs_of),
    "Int8WindowedAttention": (INT8_ATTENTION, INT8_CACHE, int8_inputs_of),
}


def windowed_graph(kind, feeds, **attributes):
    kernel, fixed, _ = KINDS[kind]
    given = {"local_window_size": WINDOW} | attributes
    return graph_of(
        feeds, kernel=replace(kernel, function=replace(kernel.function, name=kind)), fixed=fixed | EVICTS, **given
    )


def run_in_place(session, feeds):
    """Return the output, and the buffers that are past and present."""
    binding = session.io_binding()
    binding.bind_output("output", "cpu")
    caches = {each: ort.OrtValue.ortvalue_from_numpy(feeds[each].copy()) for each in ("past_key", "past_value")}
    for each, value in feeds.items():
        if each in caches:
            binding.bind_ortvalue_input(each, caches[each])
            binding.bind_ortvalue_output(each.replace("past", "present"), caches[each])
        else:
            binding.bind_cpu_input(each, value)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0], [cache.numpy().copy() for cache in caches.values()]


def stored(length, capacity):
    """Tokens that are kept of a text: a buffer is filled, and then keeps a window again."""
    return length if length <= capacity else (length - capacity - 1) % (capacity - WINDOW + 1) + WINDOW


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("valid", "tokens", "capacity"),
    [([6], 6, 8), ([40], 40, 8), ([7, 3], 1, 8), ([30, 9, 8], 1, 8), ([30, 17], 1, 13), ([21], 6, 13), ([90], 60, 13)],
)
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_agrees_with_the_function(library, kind, valid, tokens, capacity, bias):
    feeds = KINDS[kind][2](valid, tokens, capacity=capacity, rotary=32, bias=bias)
    graph = windowed_graph(kind, feeds, do_rotary=1)
    (expected, caches), (found, ours) = (
        run_in_place(session, feeds) for session in (session_of(graph), session_of(graph, library))
    )
    halves = kind.startswith("Fp16")  # of which the function rounds new ones once it has attended to them
    np.testing.assert_allclose(found, expected, atol=2e-3 if halves else 2e-5)
    for row, length in enumerate(valid):
        for cache, of_function in zip(ours, caches, strict=True):
            kept = (row, slice(None), slice(stored(length, capacity)))
            np.testing.assert_allclose(cache[kept], of_function[kept], atol=1e-6, rtol=1e-3 if halves else 1e-7)
    narrow = windowed_graph(kind, feeds, do_rotary=1, local_window_size=WINDOW - 2)
    if max(valid) >= WINDOW:
        assert np.abs(run_in_place(session_of(narrow, library), feeds)[0] - expected).max() > 1e-3, "cannot fail"


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_inputs_are_errors(library, kind):
    feeds = KINDS[kind][2]([20], 1, capacity=WINDOW - 1)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{kind}: past_key has less room than a window"):
        session_of(windowed_graph(kind, feeds), library).run(None, feeds)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{kind}: local_window_size must be positive"):
        session_of(windowed_graph(kind, feeds, local_window_size=-1), library)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{kind}: row 0 has 0 tokens"):
        wrong = feeds | {"seqlens_k": np.array([-1], np.int32)}
        session_of(windowed_graph(kind, feeds, local_window_size=4), library).run(None, wrong)


@pytest.mark.parametrize("cache_precision", [None, "fp16", "int8"])
def test_a_windowed_graph_runs_kernels_alone(make_model, installed, library, tmp_path, monkeypatch, cache_precision):
    """Gemma 3's layers: windows and norms of heads."""
    sizes = {
        "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": 2,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    bundle = export_model(
        make_model("gemma3_text", 3, **sizes), tmp_path / "bundle", precision="int4", cache_precision=cache_precision,
        verify=None,
    ).path  # fmt: skip
    without = load(bundle, "cpu", kernels=False)
    installed(library)
    monkeypatch.setattr(session, "usable_cores", lambda: 2)  # tests that run side by side have one each
    model = load(bundle, "cpu", threads=2)
    name = f"{(cache_precision or '').capitalize()}WindowedAttention"
    assert f" {name} ×2" in model.kernels.describe()
    assert "threads of their own" in model.kernels.describe()
    tokens = list(range(5, 45))
    ours, theirs = (each.new_decoder(1, len(tokens)) for each in (model, without))
    for piece in (tokens[:20], *([token] for token in tokens[20:])):
        found, expected = (each.prefill(0, piece) for each in (ours, theirs))
        assert np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()) < 0.05
