"""Layers with a state of fixed size: kernels agree with the ops in float64, whatever padding holds."""

import ctypes
import json

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from test_mat_mul_n_bits import session_of

from edgeformer import ops
from edgeformer.contract.ops import MASKED_CONVOLUTION, MASKED_LINEAR_ATTENTION
from edgeformer.export.lower.ort.kernels.recurrent_functions import MOST_TAPS
from edgeformer.runtime.sessions.session import onnxruntime_errors

MASKS = {
    "full": lambda length: np.ones((2, length), bool),
    "right": lambda length: np.arange(length) < np.array([[length], [length // 2]]),
    "left": lambda length: np.arange(length) >= np.array([[0], [length // 2]]),
    "anywhere": lambda length: np.random.default_rng(length).random((2, length)) < 0.6,
    "none": lambda length: np.zeros((2, length), bool),
}


def graph_of(op, given, **attributes):
    """A graph of one call of a kernel, whose inputs have these arrays; None for an input that is absent."""
    types = {"bool": TensorProto.BOOL, "float32": TensorProto.FLOAT}
    inputs = [
        make_tensor_value_info(name, types[str(value.dtype)], [None] * value.ndim)
        for name, value in given.items()
        if value is not None
    ]
    outputs = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in op.outputs]
    names = [name if given.get(name) is not None else "" for name in op.inputs]
    node = make_node(op.name, names, op.outputs, domain=op.domain, **attributes)
    opsets = [make_opsetid("", 20), make_opsetid(op.domain, 1)]
    return make_model(make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9).SerializeToString()


def convolution(length, mask, channels=70, taps=4, bias=True):
    random = np.random.default_rng(0).standard_normal
    given = {
        "x": random((2, length, channels)),
        "weight": random((channels, taps)),
        "bias": random(channels) if bias else None,
        "past": random((2, channels, taps - 1)),
    }
    return {name: None if each is None else each.astype(np.float32) for name, each in given.items()} | {
        "token_mask": MASKS[mask](length)
    }


def attention(length, mask, sizes=(2, 4, 24, 40), decay=True, beta=True):
    """sizes: heads of queries and of the state, and its two dimensions."""
    groups, heads, key_dim, value_dim = sizes
    random = np.random.default_rng(1).standard_normal
    given = {
        "query": random((2, length, groups * key_dim)),
        "key": random((2, length, groups * key_dim)) / key_dim**0.5,
        "value": random((2, length, heads * value_dim)),
        "past": random((2, heads, key_dim, value_dim)),
        "decay": -np.abs(random((2, length, heads))) if decay else None,
        "beta": np.abs(np.tanh(random((2, length, heads)))) if beta else None,
    }
    return {name: None if each is None else each.astype(np.float32) for name, each in given.items()} | {
        "token_mask": MASKS[mask](length)
    }


def exact(op, given, **attributes):
    tensors = {name: None if each is None else torch.from_numpy(each) for name, each in given.items()}
    wide = {
        name: each.double() if each is not None and each.is_floating_point() else each for name, each in tensors.items()
    }
    return [each.numpy() for each in op(**wide, **attributes)]


def check(session, given, expected, mask):
    feeds = {name: value for name, value in given.items() if value is not None}
    for name in ("x", "query", "key", "value", "decay", "beta"):
        if name in feeds:
            feeds[name] = np.where(mask[..., None], feeds[name], np.float32(np.nan))
    output, present = session.run(None, feeds)
    assert np.all(output[~mask] == 0)
    for found, wanted in ((output[mask], expected[0][mask]), (present, expected[1])):
        if found.size:
            np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


LEVELS = ("avx512-bf16", "avx512-vnni", "avx2", "plain")
"""SIMD levels with vectors of 16, 8 and 4 numbers."""


def each_level(library, graph):
    """Sessions of a graph, one for each level that runs here."""
    sizes = here(library).keys() & set(LEVELS)
    return [session_of(graph, library, team=2, level=level) for level in sorted(sizes)]


def here(library):
    """The levels that run here, as a library describes itself."""
    describe = ctypes.CDLL(library).edgeformer_kernels_describe
    describe.restype = ctypes.c_char_p
    return json.loads(describe())["panels"]


@pytest.mark.parametrize("taps", [2, 3, 4, MOST_TAPS])
@pytest.mark.parametrize("silu", [False, True])
def test_a_convolution_agrees_with_the_op(library, taps, silu):
    graph = graph_of(MASKED_CONVOLUTION, convolution(1, "full", taps=taps), silu=int(silu))
    for session in each_level(library, graph):
        for mask in MASKS:
            for length in (1, 2, 40):
                given = convolution(length, mask, taps=taps)
                check(session, given, exact(ops.causal_conv, given, silu=silu), given["token_mask"])


def test_a_convolution_may_lack_a_bias_and_have_many_channels(library):
    given = convolution(3, "anywhere", channels=1100, bias=False)
    for session in each_level(library, graph_of(MASKED_CONVOLUTION, given)):
        check(session, given, exact(ops.causal_conv, given, silu=False), given["token_mask"])


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("sizes", [(2, 4, 24, 40), (3, 3, 128, 64), (1, 2, 5, 7)])
def test_linear_attention_agrees_with_the_op(library, sizes, decay, beta):
    graph = graph_of(MASKED_LINEAR_ATTENTION, attention(1, "full", sizes, decay, beta), scale=0.25)
    for session in each_level(library, graph):
        for mask in MASKS:
            for length in (1, 2, 40):
                given = attention(length, mask, sizes, decay, beta)
                check(session, given, exact(ops.linear_attention, given, scale=0.25), given["token_mask"])


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("decay", [-200.0, -30.0, -1.0, -1e-4, float("-inf")])
def test_a_state_decays_slowly_or_at_once(library, decay, beta):
    """Decays that leave nothing of the state, together or at once, and one that leaves almost all."""
    given = attention(120, "anywhere", beta=beta)
    given["decay"] = np.where(given["decay"] < -0.5, np.float32(decay), given["decay"])
    for session in each_level(library, graph_of(MASKED_LINEAR_ATTENTION, given, scale=1.0)):
        check(session, given, exact(ops.linear_attention, given, scale=1.0), given["token_mask"])


CASES = {
    "convolution": (MASKED_CONVOLUTION, convolution, ops.causal_conv, {"silu": True}),
    "linear attention": (MASKED_LINEAR_ATTENTION, attention, ops.linear_attention, {"scale": 0.5}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_state_is_updated_in_place(library, case):
    """Past and present are one buffer, for a prompt, steps, and a run of padding alone."""
    op, make, exactly, attributes = CASES[case]
    session = session_of(graph_of(op, make(1, "full"), **attributes), library, team=2)
    past = make(1, "full")["past"]
    buffer = ort.OrtValue.ortvalue_from_numpy(past.copy())
    for length, mask in ((21, "anywhere"), (1, "full"), (3, "none"), (1, "full")):
        given, binding = make(length, mask), session.io_binding()
        for name, value in given.items():
            if value is not None and name != "past":
                binding.bind_cpu_input(name, value)
        binding.bind_ortvalue_input("past", buffer)
        binding.bind_output(op.outputs[0])
        binding.bind_ortvalue_output(op.outputs[1], buffer)
        session.run_with_iobinding(binding)
        expected, past = exact(exactly, given | {"past": past}, **attributes)
        tokens = given["token_mask"]
        np.testing.assert_allclose(binding.get_outputs()[0].numpy()[tokens], expected[tokens], atol=1e-5)
        np.testing.assert_allclose(buffer.numpy(), past, atol=1e-5)


REFUSED = {
    "a weight of other channels": ("convolution", "weight", (71, 4), "taps of each channel"),
    "a weight of one tap": ("convolution", "weight", (70, 1), f"2 to {MOST_TAPS} taps"),
    "too many taps": ("convolution", "weight", (70, MOST_TAPS + 1), f"2 to {MOST_TAPS} taps"),
    "a bias of other channels": ("convolution", "bias", (69,), "bias must have"),
    "a past of another length": ("convolution", "past", (2, 70, 4), "past must have"),
    "a mask of other tokens": ("convolution", "token_mask", (2, 4), "token_mask must have"),
    "x of two dimensions": ("convolution", "x", (2, 70), "x must have 3 dimensions"),
    "heads that divide nothing": ("linear attention", "query", (2, 3, 72), "query must have heads"),
    "a query of no head": ("linear attention", "query", (2, 3, 23), "query must have heads"),
    "other keys": ("linear attention", "key", (2, 3, 24), "key must have the shape of query"),
    "other values": ("linear attention", "value", (2, 3, 159), "value must have the heads"),
    "a decay of other heads": ("linear attention", "decay", (2, 3, 5), "decay and beta"),
    "a beta of fewer tokens": ("linear attention", "beta", (2, 2, 4), "decay and beta"),
    "a mask of fewer rows": ("linear attention", "token_mask", (1, 3), "token_mask must have"),
    "a past of other rows": ("linear attention", "past", (3, 4, 24, 40), "query must have heads"),
    "a past of nothing": ("linear attention", "past", (2, 4, 24, 0), "past must have numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_together_is_refused(library, name):
    case, changed, shape, reason = REFUSED[name]
    op, make, _, attributes = CASES[case]
    given = make(3, "full")
    given[changed] = np.zeros(shape, given[changed].dtype)
    session = session_of(graph_of(op, given, **attributes), library)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::{op.name}: .*{reason}"):
        session.run(None, given)


def test_one_wrong_number_would_be_found(library):
    """A negative control: with the taps in the other order, with another decay, the results are not the op's."""
    for case, changed in (("convolution", "weight"), ("linear attention", "decay")):
        op, make, exactly, attributes = CASES[case]
        given = make(5, "full")
        session = session_of(graph_of(op, given, **attributes), library)
        wrong = given | {changed: np.ascontiguousarray(given[changed][..., ::-1])}
        with pytest.raises(AssertionError):
            check(session, given, exact(exactly, wrong, **attributes), given["token_mask"])
