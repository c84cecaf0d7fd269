"""The op edgeformer::CachedAttention in onnxruntime agrees with its function, and refuses wrong inputs."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor_value_info,
    np_dtype_to_tensor_dtype,
)
from test_mat_mul_n_bits import session_of

from edgeformer.export.lower.ort.kernels.kernel_nodes import ATTENTION, FP16_ATTENTION
from edgeformer.runtime.sessions.session import onnxruntime_errors

HEADS, KV_HEADS, HEAD_DIM, POSITIONS = 6, 2, 32, 160
INTEGERS = ("seqlens_k", "total_sequence_length")
PLAIN = {
    "num_heads": HEADS, "kv_num_heads": KV_HEADS, "local_window_size": -1, "do_rotary": 0, "rotary_interleaved": 0,
    "scale": 0.125, "softcap": 0.0,
}  # fmt: skip


def graph_of(feeds, *, kernel=ATTENTION, fixed=None, **attributes):
    """A graph of one call of a kernel with a cache, and its function. fixed: attributes of the function's body."""
    function = ir.serde.serialize_function(kernel.definition(ir.convenience.convert_attributes(fixed or {})))
    names = [name if name in feeds else "" for name in kernel.inputs if name is not None]
    node = make_node(kernel.name, names, kernel.outputs, domain="edgeformer", **(PLAIN | attributes))
    inputs = [make_tensor_value_info(name, np_dtype_to_tensor_dtype(each.dtype), None) for name, each in feeds.items()]
    of_cache = np_dtype_to_tensor_dtype(feeds["past_key"].dtype)
    outputs = [
        make_tensor_value_info(name, of_cache if name.startswith("present") else TensorProto.FLOAT, None)
        for name in kernel.outputs
    ]
    opsets = [make_opsetid(domain, version) for domain, version in (("", 18), ("edgeformer", 1), ("com.microsoft", 1))]
    graph = make_graph([node], "g", inputs, outputs)
    return make_model(graph, opset_imports=opsets, ir_version=9, functions=[function]).SerializeToString()


def inputs_of(valid, tokens, *, capacity=None, packed=False, rotary=0, bias=False, sinks=False, seed=0):
    """Inputs for rows with `valid` tokens in all, of which `tokens` are new; a past with room for `capacity`."""
    random, rows, total = np.random.default_rng(seed), len(valid), max(*valid, tokens)

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    past = (rows, KV_HEADS, total - tokens if capacity is None else capacity, HEAD_DIM)
    feeds = {"query": normal(rows, tokens, HEADS * HEAD_DIM)}
    if packed:
        feeds = {"query": normal(rows, tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM)}
    else:
        feeds |= {name: normal(rows, tokens, KV_HEADS * HEAD_DIM) for name in ("key", "value")}
    feeds |= {"past_key": normal(*past), "past_value": normal(*past)}
    feeds |= {"seqlens_k": np.array(valid, np.int32) - 1, "total_sequence_length": np.array(total, np.int32)}
    if rotary:
        angles = np.outer(np.arange(POSITIONS), 0.9 ** np.arange(rotary // 2))
        feeds |= {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}
    if bias:
        feeds["attention_bias"] = normal(1, HEADS, tokens, total)
    if sinks:
        feeds["head_sink"] = normal(HEADS)
    return feeds


def fp16_inputs_of(valid, tokens, **options):
    """Inputs with a cache of float16."""
    feeds = inputs_of(valid, tokens, **options)
    return feeds | {name: feeds[name].astype(np.float16) for name in ("past_key", "past_value")}


CASES = {
    "a prompt": (([40], 40), {}),
    "a prompt into a longer past": (([40], 40), {"capacity": 60}),
    "a padded batch of prompts": (([40, 9, 1], 40), {"capacity": 64}),
    "a step": (([90], 1), {}),
    "steps of rows of all lengths": (([90, 2, 33], 1), {"capacity": 100}),
    "a chunk": (([100], 30), {"capacity": 128}),
}
VARIANTS = {
    "plain": ({}, {}),
    "packed and rotated": ({"packed": True, "rotary": 32}, {"do_rotary": 1}),
    "neighbours rotated": ({"rotary": 16}, {"do_rotary": 1, "rotary_interleaved": 1}),
    "window": ({}, {"local_window_size": 20}),
    "soft-cap, no scale": ({}, {"softcap": 3.0, "scale": 0.0}),
    "bias and sinks": ({"bias": True, "sinks": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_agrees_with_the_function(library, case, variant):
    (where, options), (changes, attributes) = CASES[case], VARIANTS[variant]
    feeds = inputs_of(*where, **options, **changes)
    graph = graph_of(feeds, **attributes)
    expected, found = (session.run(None, feeds) for session in (session_of(graph), session_of(graph, library)))
    for row, valid in enumerate(where[0]):
        past = 0 if where[1] == max(*where[0], where[1]) else valid - where[1]
        np.testing.assert_allclose(found[0][row, : valid - past], expected[0][row, : valid - past], atol=2e-5)
        for cache, of_function in zip(found[1:], expected[1:], strict=True):
            assert cache.shape == of_function.shape
            np.testing.assert_allclose(cache[row, :, :valid], of_function[row, :, :valid], atol=1e-6)
    doubled = session_of(graph, library).run(None, feeds | {"query": 2 * feeds["query"]})[0]
    assert np.abs(doubled - expected[0])[0, -1].max() > 1e-3, "a comparison that cannot fail"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", ["packed and rotated", "window", "bias and sinks"])
def test_a_kernel_over_float16_agrees_with_the_function(library, case, variant):
    """Which attends to new keys and values before they are rounded, and so differs by that."""
    (where, options), (changes, attributes) = CASES[case], VARIANTS[variant]
    feeds = fp16_inputs_of(*where, **options, **changes)
    graph = graph_of(feeds, kernel=FP16_ATTENTION, **attributes)
    expected, found = (session.run(None, feeds) for session in (session_of(graph), session_of(graph, library)))
    for row, valid in enumerate(where[0]):
        past = 0 if where[1] == max(*where[0], where[1]) else valid - where[1]
        np.testing.assert_allclose(found[0][row, : valid - past], expected[0][row, : valid - past], atol=2e-3)
        for cache, of_function in zip(found[1:], expected[1:], strict=True):
            assert (cache.dtype, cache.shape) == (np.float16, of_function.shape)
            np.testing.assert_array_equal(cache[row, :, :past], of_function[row, :, :past])
            np.testing.assert_allclose(cache[row, :, :valid], of_function[row, :, :valid], rtol=1e-3, atol=1e-6)
    doubled = session_of(graph, library).run(None, feeds | {"query": 2 * feeds["query"]})[0]
    assert np.abs(doubled - expected[0])[0, -1].max() > 2e-2, "a comparison that cannot fail"


@pytest.mark.parametrize("name", ["a step", "a chunk"])
def test_a_cache_is_changed_in_place(library, name):
    (where, _), rows = CASES[name], len(CASES[name][0][0])
    feeds = inputs_of(*where, capacity=128)
    session = session_of(graph_of(feeds), library)
    expected = session.run(None, feeds)
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
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected[0])
    valid = where[0][0]
    for cache, present in zip(caches.values(), expected[1:], strict=True):
        assert present.shape == (rows, KV_HEADS, 128, HEAD_DIM)
        np.testing.assert_array_equal(cache.numpy()[:, :, :valid], present[:, :, :valid])
    # What lies behind the tokens is nobody's: it stays where the buffer is one, and is 0 in a new one.
    np.testing.assert_array_equal(caches["past_key"].numpy()[:, :, valid:], feeds["past_key"][:, :, valid:])
    assert not expected[1][:, :, valid:].any()


def test_rows_with_chunks_of_their_own_are_right(library):
    """onnxruntime's op refuses several rows with several new tokens behind a past."""
    feeds = inputs_of([100, 60], 20, capacity=128)
    together = session_of(graph_of(feeds), library).run(None, feeds)[0]
    for row, valid in enumerate((100, 60)):
        alone = {name: value[row : row + 1] if value.ndim > 2 else value for name, value in feeds.items()}
        alone |= {"seqlens_k": np.array([valid - 1], np.int32), "total_sequence_length": np.array(valid, np.int32)}
        np.testing.assert_allclose(together[row], session_of(graph_of(alone)).run(None, alone)[0][0], atol=2e-5)


WRONG = {
    "another head_dim of values": ({"past_value": np.zeros((1, KV_HEADS, 128, 16), np.float32)}, "past_value has"),
    "a query of other heads": ({"query": np.zeros((1, 1, 96), np.float32)}, r"query has the shape \[1, 1, 96\], not"),
    "more tokens than positions": ({"seqlens_k": np.array([170], np.int32)}, "row 0 has 171 tokens"),
    "more tokens than the bias has": ({"seqlens_k": np.array([100], np.int32)}, "row 0 has 101 tokens"),
    "no total": ({"total_sequence_length": np.zeros(0, np.int32)}, "total_sequence_length must be one number"),
    "no tokens": ({"seqlens_k": np.array([-1], np.int32)}, "row 0 has 0 tokens"),
    "a length for another row": ({"seqlens_k": np.array([9, 9], np.int32)}, r"seqlens_k has the shape \[2\]"),
    "a short bias": ({"attention_bias": np.zeros((1, 1, 1, 99), np.float32)}, "attention_bias has the shape"),
    "sinks of other heads": ({"head_sink": np.zeros(HEADS + 1, np.float32)}, "head_sink has the shape"),
    "fewer sines": ({"sin_cache": np.zeros((4, 16), np.float32)}, "sin_cache has the shape"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_inputs_are_errors(library, fault):
    changes, message = WRONG[fault]
    feeds = inputs_of([100], 1, capacity=128, rotary=32, bias=True, sinks=True)
    session = session_of(graph_of(feeds, do_rotary=1), library)
    session.run(None, feeds)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::CachedAttention: {message}"):
        session.run(None, feeds | changes)
