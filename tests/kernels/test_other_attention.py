"""Attention to an earlier layer's cache and to a source: kernels agree with functions, and refuse wrong inputs."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from test_cached_attention import HEAD_DIM, HEADS, INTEGERS, KV_HEADS, PLAIN, inputs_of
from test_mat_mul_n_bits import session_of

from edgeformer.export.lower.ort.kernels.kernel_nodes import SHARED_ATTENTION, SOURCE_ATTENTION
from edgeformer.runtime.sessions.session import onnxruntime_errors

LOWEST = ir.AttrFloat32("mask_filter_value", float(np.finfo(np.float32).min))


def graph_of(kernel, feeds, fixed=(), **attributes):
    """A graph of one call, and its function."""
    names = [name if name in feeds else "" for name in kernel.inputs if name is not None]
    node = make_node(kernel.name, names, ["output"], domain="edgeformer", **attributes)
    integers = (*INTEGERS, "key_padding_mask")
    inputs = [
        make_tensor_value_info(name, TensorProto.INT32 if name in integers else TensorProto.FLOAT, None)
        for name in feeds
    ]
    opsets = [make_opsetid(domain, version) for domain, version in (("", 18), ("edgeformer", 1), ("com.microsoft", 1))]
    graph = make_graph([node], "g", inputs, [make_tensor_value_info("output", TensorProto.FLOAT, None)])
    function = ir.serde.serialize_function(kernel.definition(fixed))
    return make_model(graph, opset_imports=opsets, ir_version=9, functions=[function]).SerializeToString()


def shared_feeds(valid, tokens, capacity, **options):
    """Inputs whose cache has the new tokens' keys and values."""
    feeds = inputs_of(valid, tokens, capacity=capacity, **options)
    nothing = np.zeros((len(valid), 0, KV_HEADS * HEAD_DIM), np.float32)
    return feeds | {"key": nothing, "value": nothing}


@pytest.mark.parametrize(
    ("valid", "tokens", "capacity"), [([40], 40, 40), ([40, 9], 40, 64), ([90, 33], 1, 100), ([100], 30, 128)]
)
@pytest.mark.parametrize(
    ("options", "attributes"),
    [({}, {}), ({"rotary": 32}, {"do_rotary": 1, "local_window_size": 20}), ({"bias": True, "sinks": True}, {})],
)
def test_a_shared_cache_is_read_as_the_function_reads_it(library, valid, tokens, capacity, options, attributes):
    feeds = shared_feeds(valid, tokens, capacity, **options)
    graph = graph_of(SHARED_ATTENTION, feeds, **(PLAIN | attributes))
    expected, found = (session_of(graph, each).run(None, feeds)[0] for each in (None, library))
    for row, length in enumerate(valid):
        new = min(tokens, length)
        np.testing.assert_allclose(found[row, :new], expected[row, :new], atol=2e-5)
    doubled = session_of(graph, library).run(None, feeds | {"query": 2 * feeds["query"]})[0]
    assert np.abs(doubled - expected)[0, -1].max() > 1e-3, "a comparison that cannot fail"


SHARED_WRONG = {
    "new keys": ({"key": np.zeros((1, 1, KV_HEADS * HEAD_DIM), np.float32)}, r"key has the shape \[1, 1, 64\]"),
    "more tokens than the cache has": (
        dict.fromkeys(("past_key", "past_value"), np.zeros((1, KV_HEADS, 99, HEAD_DIM), np.float32)), "row 0 has 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", SHARED_WRONG)
def test_a_wrong_shared_cache_is_an_error(library, fault):
    changes, message = SHARED_WRONG[fault]
    feeds = shared_feeds([100], 1, 128)
    session = session_of(graph_of(SHARED_ATTENTION, feeds, **PLAIN), library)
    session.run(None, feeds)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::SharedCacheAttention: {message}"):
        session.run(None, feeds | changes)


def source_feeds(rows, tokens, source, mask=None):
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    keys = rows, HEADS, source, HEAD_DIM
    feeds = {"query": normal(rows, tokens, HEADS * HEAD_DIM), "key": normal(*keys), "value": normal(*keys)}
    return feeds | {"key_padding_mask": np.ones((rows, source), np.int32) if mask is None else mask.astype(np.int32)}


MASKS = {
    "no padding": np.ones((2, 70)),
    "padding": np.arange(70) < np.array([[70], [9]]),
    "padding in front and within": np.arange(70) % np.array([[7], [70]]) > 2,
}


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_a_source_is_read_as_the_function_reads_it(library, mask, tokens, scale):
    feeds = source_feeds(2, tokens, 70, MASKS[mask])
    graph = graph_of(SOURCE_ATTENTION, feeds, [LOWEST], num_heads=HEADS, scale=scale)
    expected, found = (session_of(graph, each).run(None, feeds)[0] for each in (None, library))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    everything = session_of(graph, library).run(None, feeds | {"key_padding_mask": np.ones((2, 70), np.int32)})[0]
    assert (np.abs(everything - found).max() > 1e-3) == (mask != "no padding"), "a comparison that cannot fail"


def test_a_source_without_tokens_gives_nothing(library):
    feeds = source_feeds(1, 3, 5, np.zeros((1, 5)))
    graph = graph_of(SOURCE_ATTENTION, feeds, [LOWEST], num_heads=HEADS, scale=1.0)
    assert not session_of(graph, library).run(None, feeds)[0].any()


SOURCE_WRONG = {
    "other heads": ({"query": np.zeros((1, 2, 96), np.float32)}, r"query has the shape \[1, 2, 96\]"),
    "a short value": ({"value": np.zeros((1, HEADS, 8, HEAD_DIM), np.float32)}, "value has the shape"),
    "a short mask": ({"key_padding_mask": np.ones((1, 8), np.int32)}, "key_padding_mask has the shape"),
}


@pytest.mark.parametrize("fault", SOURCE_WRONG)
def test_a_wrong_source_is_an_error(library, fault):
    changes, message = SOURCE_WRONG[fault]
    feeds = source_feeds(1, 2, 9)
    session = session_of(graph_of(SOURCE_ATTENTION, feeds, [LOWEST], num_heads=HEADS, scale=1.0), library)
    session.run(None, feeds)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::SourceAttention: {message}"):
        session.run(None, feeds | changes)
