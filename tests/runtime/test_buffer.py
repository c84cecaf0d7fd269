"""Memory that a graph reads and writes in place: whole, or one row of it."""

import weakref
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgeformer.errors import RequestError
from edgeformer.runtime.sessions.buffer import Buffer

ROWS, SHAPE = 3, (3, 2, 4)
DTYPES = [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16)]


@pytest.fixture(params=DTYPES, ids=["fp32", "fp16"])
def doubling(request):
    """A session whose `y` is twice its `x`, and the dtype of both."""
    dtype, kind = request.param
    dims = ["rows", 2, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "doubling",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), dtype


def filled(dtype):
    buffer = Buffer(SHAPE, dtype)
    buffer.put(np.arange(np.prod(SHAPE), dtype=dtype).reshape(SHAPE))
    return buffer


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_host_is_the_memory_itself(dtype):
    buffer = filled(dtype)
    assert buffer.nbytes == 24 * np.dtype(dtype).itemsize == buffer.host().nbytes
    buffer.host()[1, 0] = -1
    assert buffer.host()[1].tolist() == [[-1] * 4, [12, 13, 14, 15]]
    assert np.shares_memory(buffer.host(), buffer.host())
    assert buffer.host().ctypes.data == buffer.host()[0].ctypes.data


def test_memory_lives_as_long_as_somebody_looks_at_it():
    buffer = filled(np.float32)
    memory, content = weakref.ref(buffer._value), buffer.host()[1:]
    del buffer
    assert memory() is not None
    assert content[0, 0, 0] == 8
    del content
    assert memory() is None


def test_put_overwrites_everything_and_keeps_no_array():
    buffer, content = filled(np.float32), np.full(SHAPE, 7, np.float32)
    address = buffer.host().ctypes.data
    buffer.put(content)
    content[:] = 0
    assert (buffer.host() == 7).all()
    # What `host` gave, changed, is in its place already.
    own = buffer.host()
    own[0] = 1
    buffer.put(own)
    assert buffer.host()[:, 0, 0].tolist() == [1, 7, 7]
    assert buffer.host().ctypes.data == address


def test_two_buffers_have_memory_of_their_own():
    first, second = filled(np.float32), Buffer(SHAPE, np.float32)
    second.put(np.zeros(SHAPE, np.float32))
    assert first.host()[2, 1, 3] == 23


def test_a_graph_reads_and_writes_all_rows_in_place(doubling):
    session, dtype = doubling
    buffer = filled(dtype)
    expected = 2 * buffer.host().copy()
    binding = session.io_binding()
    buffer.bind_input(binding, "x")
    buffer.bind_output(binding, "y")
    session.run_with_iobinding(binding)
    assert (buffer.host() == expected).all()


@pytest.mark.parametrize("row", range(ROWS))
def test_a_graph_reads_and_writes_one_row(doubling, row):
    session, dtype = doubling
    source, target = filled(dtype), filled(dtype)
    expected = target.host().copy()
    expected[row] = 2 * source.host()[ROWS - 1 - row]
    binding = session.io_binding()
    source.bind_input(binding, "x", ROWS - 1 - row)
    target.bind_output(binding, "y", row)
    session.run_with_iobinding(binding)
    assert (target.host() == expected).all()
    assert (source.host() == filled(dtype).host()).all()


def test_memory_that_there_is_none_of_is_one_sentence(monkeypatch):
    def fail(*arguments):
        raise MemoryError("std::bad_alloc")

    fake = SimpleNamespace(OrtValue=SimpleNamespace(ortvalue_from_shape_and_type=fail))
    monkeypatch.setattr("edgeformer.runtime.sessions.buffer.onnxruntime", lambda: fake)
    with pytest.raises(RequestError, match=r"a cache of 3 x 2 x 4 numbers cannot be allocated: std::bad_alloc"):
        Buffer(SHAPE, np.float32)
