"""The ops SelfAttention and CausalSelfAttention in onnxruntime agree with their functions, and refuse wrong inputs."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from test_cached_attention import HEADS, KV_HEADS, PLAIN, inputs_of
from test_mat_mul_n_bits import session_of
from test_other_attention import graph_of
from test_registration import described

from edgeformer.export.lower.ort.kernels.float_functions import EXACT
from edgeformer.export.lower.ort.kernels.kernel_nodes import CAUSAL_SELF_ATTENTION, SELF_ATTENTION
from edgeformer.runtime.sessions.session import onnxruntime_errors

BIDIRECTIONAL = [ir.AttrInt64("causal", 0)]
ROUNDED = ("amx", "avx512-bf16", "avx512-vnni", "avx2-vnni", "neon-i8mm", "neon-dotprod")
"""Levels that multiply pairs of bfloat16, or bytes."""
FIXED = {SELF_ATTENTION.name: BIDIRECTIONAL, CAUSAL_SELF_ATTENTION.name: []}


def feeds_of(valid, tokens, **options):
    feeds = inputs_of(valid, tokens, **options)
    del feeds["past_key"], feeds["past_value"]
    return feeds


VARIANTS = {
    "plain": ({}, {}),
    "packed and rotated": ({"packed": True, "rotary": 32}, {"do_rotary": 1}),
    "neighbours rotated": ({"rotary": 16}, {"do_rotary": 1, "rotary_interleaved": 1}),
    "a window": ({}, {"local_window_size": 20}),
    "soft-cap, no scale": ({}, {"softcap": 3.0, "scale": 0.0}),
    "bias and sinks": ({"bias": True, "sinks": True}, {}),
}


@pytest.mark.parametrize("kernel", [SELF_ATTENTION, CAUSAL_SELF_ATTENTION], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("valid", [[1], [70], [70, 9, 1]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_agrees_with_the_function(library, kernel, valid, variant):
    changes, attributes = VARIANTS[variant]
    if kernel is SELF_ATTENTION:
        attributes = attributes | {"local_window_size": -1}  # which onnxruntime's node has for causal attention only
    feeds = feeds_of(valid, max(valid), **changes)
    graph = graph_of(kernel, feeds, FIXED[kernel.name], **(PLAIN | attributes))
    expected, found = (session_of(graph, each).run(None, feeds)[0] for each in (None, library))
    assert found.shape == expected.shape
    for row, length in enumerate(valid):
        np.testing.assert_allclose(found[row, :length], expected[row, :length], atol=2e-5)
        assert not found[row, length:].any()
    doubled = session_of(graph, library).run(None, feeds | {"query": 2 * feeds["query"]})[0]
    assert valid == [1] or np.abs(doubled - expected)[0].max() > 1e-3, "a comparison that cannot fail"


@pytest.mark.parametrize("kernel", [SELF_ATTENTION, CAUSAL_SELF_ATTENTION], ids=lambda kernel: kernel.name)
def test_long_texts_round_unless_float32_is_asked_for(library, kernel):
    """Where the level multiplies bfloat16 or bytes; a graph of floats asks for float32."""
    feeds = feeds_of([300, 257], 300)
    rounded, exact = (
        graph_of(each, feeds, FIXED[kernel.name], **(PLAIN | attributes))
        for each, attributes in ((kernel, {}), (replace(kernel, of_kernel=EXACT), EXACT))
    )
    expected = session_of(exact, None).run(None, feeds)[0][0]
    for level in described(library)["levels"]:
        found, kept = (session_of(each, library, level=level).run(None, feeds)[0][0] for each in (rounded, exact))
        np.testing.assert_allclose(kept, expected, atol=2e-5)
        error = np.abs(found - expected).max()
        assert 1e-4 < error < 2e-2 if level in ROUNDED else error < 2e-5, level


def test_no_rows_are_no_work(library):
    feeds = feeds_of([3, 3], 3)
    feeds |= {name: feeds[name][:0] for name in ("query", "key", "value", "seqlens_k")}
    assert session_of(graph_of(SELF_ATTENTION, feeds, BIDIRECTIONAL, **PLAIN), library).run(None, feeds)[0].shape == (
        0,
        3,
        HEADS * 32,
    )


WRONG = {
    "other heads": ({"query": np.zeros((1, 100, 96), np.float32)}, r"key has the shape \[1, 100, 64\], not"),
    "an odd head_dim": ({"query": np.zeros((1, 100, 6 * 12), np.float32)}, "head_dim must be a multiple of 8"),
    "more tokens than there are": ({"seqlens_k": np.array([100], np.int32)}, "row 0 has 101 tokens"),
    "another total": ({"total_sequence_length": np.array(101, np.int32)}, "total_sequence_length must be the tokens"),
    "a short bias": ({"attention_bias": np.zeros((1, 1, 100, 99), np.float32)}, "attention_bias has the shape"),
    "few positions": (dict.fromkeys(("cos_cache", "sin_cache"), np.zeros((9, 16), np.float32)), "row 0 has 100 tokens"),
    "a length too many": ({"seqlens_k": np.array([9, 9], np.int32)}, r"seqlens_k has the shape \[2\]"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_inputs_are_errors(library, fault):
    changes, message = WRONG[fault]
    feeds = feeds_of([100], 100, rotary=32, bias=True)
    session = session_of(graph_of(SELF_ATTENTION, feeds, BIDIRECTIONAL, **(PLAIN | {"do_rotary": 1})), library)
    assert session.run(None, feeds)[0].shape == (1, 100, HEADS * 32)
    assert feeds["key"].shape == (1, 100, KV_HEADS * 32)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::SelfAttention: {message}"):
        session.run(None, feeds | changes)
