"""Copies of rows by small graphs: the same as on the CPU, for every type and form of buffer."""

import numpy as np
import onnx
import pytest

from edgeformer.runtime.caches.row_copies import (
    Kind,
    RowCopies,
    copy_graph,
    gather_graph,
    read_graph,
    write_row_graph,
)
from edgeformer.runtime.caches.staged_rows import StagedRows, scatter_graph
from edgeformer.runtime.sessions.buffer import Buffer
from edgeformer.runtime.sessions.narrow_floats import BFLOAT16, FLOAT8

SHAPES = {
    np.float32: (4, 2, 9, 3),
    np.float16: (4, 2, 5, 3),
    np.int8: (4, 2, 9, 8),
    BFLOAT16: (4, 3, 9, 2),
    FLOAT8: (4, 2, 9, 5),
}
"""Buffers with slots for tokens; one of them has a shorter window."""
STATE = (4, 6, 7)
PER_TOKEN = [True] * len(SHAPES) + [False]


@pytest.fixture(params=["host", "device", "staged"])
def copies(request):
    """Copies of one kind, and the arrays of their buffers."""
    rng, buffers = np.random.default_rng(0), []
    for dtype, shape in [*SHAPES.items(), (np.float32, STATE)]:
        buffers.append(Buffer(shape, dtype))
        buffers[-1].put(rng.integers(0, 100, shape).astype(dtype))
    made = (StagedRows if request.param == "staged" else RowCopies)(buffers, PER_TOKEN)
    made.on_device = request.param != "host"
    return made, [buffer.host() for buffer in buffers]


@pytest.mark.parametrize("tokens", [0, 1, 4, 7, 9])
def test_a_row_is_read_as_far_as_it_has_tokens(copies, tokens):
    made, arrays = copies
    for row in (0, 3):
        found = made.read(row, tokens)
        for array, whole, slots in zip(found, arrays, PER_TOKEN, strict=True):
            np.testing.assert_array_equal(array, whole[row][:, :tokens] if slots else whole[row])


@pytest.mark.parametrize("tokens", [1, 4, 5])
def test_a_row_is_written_as_far_as_there_are_tokens(copies, tokens):
    made, arrays = copies
    before = [array.copy() for array in arrays]
    new = [(array[2][:, :tokens] if slots else array[2]).copy() for array, slots in zip(arrays, PER_TOKEN, strict=True)]
    new[1] = None
    made.write(1, new)
    for array, old, content, slots in zip(arrays, before, new, PER_TOKEN, strict=True):
        expected = old.copy()
        if content is not None:
            (expected[1][:, :tokens] if slots else expected[1])[...] = content
        np.testing.assert_array_equal(array, expected)


def test_nothing_is_written_where_nothing_is_given(copies):
    made, arrays = copies
    before = [array.copy() for array in arrays]
    for row in (0, 2):
        made.write(row, [None] * len(arrays))
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("copies", ["device", "staged"], indirect=True)
@pytest.mark.parametrize("group_bytes", [1, 2**28])
def test_rows_take_the_places_of_others(copies, group_bytes, monkeypatch):
    monkeypatch.setattr("edgeformer.runtime.caches.row_copies.GROUP_BYTES", group_bytes)
    made, arrays = copies
    before = [array.copy() for array in arrays]
    parents = np.array([1, 0, 1])  # a row is read after it was written
    assert made.reorder(parents) == sum(array[:3].nbytes for array in arrays)
    made.move(3, 1)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old[[1, 3, 1, 3]])


@pytest.mark.parametrize("graph", [copy_graph, gather_graph, read_graph, scatter_graph, write_row_graph])
def test_the_graphs_are_valid(graph):
    kinds = [Kind(np.dtype(dtype), len(shape), True) for dtype, shape in SHAPES.items()]
    kinds.append(Kind(np.dtype(np.float32), len(STATE), False))
    onnx.checker.check_model(onnx.load_from_string(graph(kinds)), full_check=True)


@pytest.mark.parametrize("copies", ["staged"], indirect=True)
def test_a_run_of_one_row_is_over_a_copy_of_it(copies):
    """Rows without addresses: any but the first one is bound as the row of another buffer, and copied back."""
    made, arrays = copies
    before = [array.copy() for array in arrays]
    assert made.bound(None) == (made._buffers, None)
    assert made.bound(0) == made.bound(range(1)) == (made._buffers, range(1))
    assert made.bound(range(3)) == (made._buffers, range(3))
    stage, rows = made.bound(2)
    assert rows is None and [each.shape[0] for each in stage] == [1] * len(arrays)
    with made.around(2):
        for buffer, old in zip(stage, before, strict=True):
            np.testing.assert_array_equal(buffer.host()[0], old[2])
            buffer.put(np.full(buffer.shape, 7, np.float32).astype(buffer.dtype))
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array[[0, 1, 3]], old[[0, 1, 3]])
        assert (array[2] == np.float32(7).astype(array.dtype)).all()
    with made.around(0), made.around(None):
        pass


@pytest.mark.parametrize("copies", ["staged"], indirect=True)
def test_adjacent_rows_are_bound_from_the_first_one_on(copies):
    with pytest.raises(AssertionError, match="from the first one on"):
        copies[0].bound(range(1, 3))
