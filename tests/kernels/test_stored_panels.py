"""Weights are packed once, stored, and read where the file is mapped; what is not exactly theirs is refused."""

import ctypes
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from test_mat_mul_n_bits import graph_of, random_weights, resident_files, session_of

from edgeformer.runtime.sessions.session import onnxruntime_errors

SIZES = {"N": 70, "K": 520, "bits": 4, "block_size": 32}
UNCHANGED, MISSING = -1, 0
PAGE = 4096
STATUS = Path("/proc/self/status")


def packed(parts, library, level=None, **sizes):
    """Return what PackMatMulNBits makes of weights: the form of each input, and panels."""
    node = make_node("PackMatMulNBits", ["", *parts], ["inputs", "panels"], domain="edgeformer", **sizes)
    types = ((TensorProto.INT64, "inputs"), (TensorProto.UINT8, "panels"))
    outputs = [make_tensor_value_info(name, kind, None) for kind, name in types]
    graph = make_graph([node], "g", [], outputs, [from_array(value, name) for name, value in parts.items()])
    opsets = [make_opsetid("", 18), make_opsetid("edgeformer", 1)]
    model = make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return session_of(model, library, level=level).run(None, {})


def stored_graph(stored, path, *, cut=0, shift=0, **sizes):
    """A graph with a product of stored weights, in a file of their own: without its last bytes, or moved."""
    (path / "data").write_bytes(b"\0" * shift + stored.tobytes()[: len(stored) - cut])
    graph = graph_of({"B": stored}, function=False, **sizes)
    model = onnx.load_from_string(graph)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "data", "offset": shift, "length": len(stored)}.items():
        tensor.external_data.add(key=key, value=str(value))
    onnx.save(model, path / "model.onnx")
    return str(path / "model.onnx")


def levels(library):
    describe = ctypes.CDLL(library).edgeformer_kernels_describe
    describe.restype = ctypes.c_char_p
    return json.loads(describe())["levels"]


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 64)])
def test_stored_panels_compute_what_packing_at_load_computes(library, tmp_path, bits, block, zero_points):
    sizes = SIZES | {"bits": bits, "block_size": block}
    parts = random_weights(70, 520, bits, block, zero_points=zero_points)
    for level in levels(library):
        inputs, stored = packed(parts, library, level, **sizes)
        assert inputs.tolist() == [UNCHANGED, len(stored), MISSING, MISSING][: len(parts) + 1]
        path = stored_graph(stored, tmp_path, **sizes)
        for rows in (1, 13):
            x = np.random.default_rng(rows).standard_normal((rows, 520)).astype(np.float32)
            ours = session_of(path, library, level=level).run(None, {"A": x})[0]
            at_load = session_of(graph_of(parts, **sizes), library, level=level).run(None, {"A": x})[0]
            np.testing.assert_array_equal(ours, at_load)


@pytest.mark.skipif(not STATUS.is_file(), reason="2026-11-24: only Linux tells which memory a process has for itself")
def test_stored_weights_are_read_where_they_are_mapped(library, tmp_path):
    # 38 MB: so much memory is given back to the system when it is freed, and does not hide what is allocated next.
    sizes = {"N": 32768, "K": 2048, "bits": 4, "block_size": 32}
    parts = random_weights(32768, 2048, 4, 32, zero_points=False)
    stored, x = packed(parts, library, **sizes)[1], np.ones((1, 2048), np.float32)
    opened = {}
    for name, graph in (("stored", stored_graph(stored, tmp_path, **sizes)), ("packed", graph_of(parts, **sizes))):
        before = private_bytes()
        opened[name] = session_of(graph, library)
        opened[name].run(None, {"A": x})
        assert (private_bytes() - before > len(stored) / 2) == (name == "packed")
    assert sum(kilobytes for path, kilobytes in resident_files() if path == tmp_path / "data") * 1024 > len(stored) / 2


def private_bytes():
    return int(re.search(r"RssAnon:\s*(\d+) kB", STATUS.read_text())[1]) * 1024


def refusal(stored, library, path, level=None, **options):
    with pytest.raises(onnxruntime_errors()) as refused:
        session_of(stored_graph(stored, path, **options), library, level=level)
    return str(refused.value)


def test_what_is_not_exactly_a_nodes_panels_is_refused(library, tmp_path):
    best = levels(library)[0]
    stored = packed(random_weights(70, 520, 4, 32, zero_points=True), library, best, **SIZES)[1]
    advice = "Write it again with: edgeformer optimize"

    def refused(changed, level=best, **options):
        return refusal(changed, library, tmp_path, level, **(SIZES | options))

    for size in (0, 63, 64, len(stored) - 64, len(stored) - 1):
        message = refused(stored[:size])
        assert f"edgeformer::MatMulNBits: B has {size} bytes" in message and advice in message, size
    message = refused(np.append(stored, np.zeros(64, np.uint8)))
    assert f"B has {len(stored) + 64} bytes; its panels want {len(stored)}" in message
    assert "B holds panels of weights of another size" in refused(stored, N=71)
    assert "B holds panels of weights of another size" in refused(stored, block_size=40)
    assert "block_size must be a multiple of 8 from 16 to 256, not 512" in refused(stored, block_size=512)
    assert "B does not begin at a cache line" in refused(stored, shift=PAGE + 32)
    other = stored.copy()
    other[:4] = 0
    assert "B holds no panels" in refused(other)
    other = stored.copy()
    other[16] += 1  # the version of the format
    assert "and these kernels read panels" in refused(other)
    if best != "plain":
        message = refused(stored, "plain")
        assert "B holds panels 3, columns" in message and "and these kernels read panels 3, columns 8" in message
    # Zero points that the header denies, or adds: the size differs.
    other = stored.copy()
    other[44] = 0
    assert "bytes; its panels want" in refused(other)


def test_a_file_that_ends_early_is_an_error_of_onnxruntime(library, tmp_path):
    stored = packed(random_weights(70, 520, 4, 32, zero_points=True), library, **SIZES)[1]
    assert "B" in refusal(stored, library, tmp_path, cut=1, **SIZES)
    assert "out of bounds" in refusal(stored, library, tmp_path, cut=1, **SIZES)


def test_without_the_library_stored_weights_are_no_model(library, tmp_path):
    stored = packed(random_weights(70, 520, 4, 32, zero_points=True), library, **SIZES)[1]
    with pytest.raises(onnxruntime_errors(), match="edgeformer:MatMulNBits.* is not a registered function/op"):
        ort.InferenceSession(stored_graph(stored, tmp_path, **SIZES))
