"""The op edgeformer::MatMulNBits in onnxruntime is right, is preferred to its function, and refuses wrong inputs."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.helper import (
    make_function,
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor_value_info,
)
from onnx.numpy_helper import from_array

from edgeformer.runtime.sessions.session import onnxruntime_errors

FORMAL = ["A", "B", "scales", "zero_points"]
ATTRIBUTES = ["K", "N", "bits", "block_size"]


def random_weights(outputs, inputs, bits, block, *, zero_points, seed=0):
    """Integers, scales and perhaps zero points of a random matrix, as MatMulNBits stores them."""
    random, blocks = np.random.default_rng(seed), -(-inputs // block)
    parts = {
        "B": random.integers(0, 256, (outputs, blocks, block * bits // 8), dtype=np.uint8),
        "scales": random.uniform(0.5, 2, (outputs, blocks)).astype(np.float32),
    }
    if zero_points:
        parts["zero_points"] = random.integers(0, 256, (outputs, -(-blocks * bits // 8)), dtype=np.uint8)
    return parts


def graph_of(parts, *, domain="edgeformer", function=True, constant=True, **attributes):
    """A graph of one product, in the domain `edgeformer`, with a function whose body is onnxruntime's op."""
    inner = make_node("MatMulNBits", FORMAL, ["Y"], domain="com.microsoft", accuracy_level=4)
    for name in ATTRIBUTES:
        inner.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=onnx.AttributeProto.INT))
    contrib = make_opsetid("com.microsoft", 1)
    body = make_function("edgeformer", "MatMulNBits", FORMAL, ["Y"], [inner], [contrib], attributes=ATTRIBUTES)
    options = dict(attributes) | ({"accuracy_level": 4} if domain == "com.microsoft" else {})
    node = make_node("MatMulNBits", ["A", *parts], ["Y"], domain=domain, **options)
    floats = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "AY"]
    weights = [from_array(value, name) for name, value in parts.items()]
    given = [] if constant else [make_tensor_value_info("B", TensorProto.UINT8, parts["B"].shape)]
    graph = make_graph([node], "g", [floats[0], *given], floats[1:], weights if constant else weights[1:])
    opsets = [make_opsetid("", 18), make_opsetid("edgeformer", 1), contrib]
    model = make_model(graph, opset_imports=opsets, ir_version=9, functions=[body] if function else [])
    return model.SerializeToString()


def session_of(graph, library=None, threads=2, team=None, level=None):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if team is not None:
        options.add_session_config_entry("edgeformer.threads", str(team))
    if level is not None:
        options.add_session_config_entry("edgeformer.level", level)
    if library is not None:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def product(x, parts, bits, block):
    """The product in float64, with activations rounded block by block to 127 steps, and the bound of its terms."""
    outputs, blocks = parts["scales"].shape
    integers = parts["B"].astype(np.float64).reshape(outputs, -1)
    if bits == 4:
        integers = np.stack([parts["B"] & 15, parts["B"] >> 4], -1).astype(np.float64)
    points = np.full((outputs, blocks), 2.0 ** (bits - 1))
    if "zero_points" in parts:
        packed = parts["zero_points"]
        pairs = packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(outputs, -1)
        points = pairs[:, :blocks].astype(np.float64)
    weights = (integers.reshape(outputs, blocks, block) - points[..., None]) * parts["scales"][..., None]
    padded = np.zeros((len(x), blocks * block), np.float32)
    padded[:, : x.shape[1]] = x
    padded = padded.reshape(len(x), blocks, block)
    largest = np.abs(padded).max(-1, keepdims=True)
    rounded = np.rint(padded * (np.float32(127) / largest)) * (largest.astype(np.float64) / 127)
    terms = np.einsum("mbk,nbk->mnb", rounded, weights)
    return terms.sum(-1), np.abs(terms).sum(-1)


SMAPS = Path("/proc/self/smaps")

TOLERANCE = 2.0**-11 + 1e-5
"""Scales are stored as halves of 11 bits, and sums are float32. Relative to the sum of magnitudes of blocks."""


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 128), (4, 256), (8, 32), (8, 128), (8, 512)])
def test_it_is_right_for_one_row_and_for_many(library, bits, block, zero_points):
    outputs, inputs = 70, 520
    parts = random_weights(outputs, inputs, bits, block, zero_points=zero_points)
    session = session_of(graph_of(parts, N=outputs, K=inputs, bits=bits, block_size=block), library)
    for rows in (1, 3, 130):
        x = np.random.default_rng(rows).standard_normal((rows, inputs)).astype(np.float32)
        expected, bound = product(x, parts, bits, block)
        error = np.abs(session.run(None, {"A": x})[0] - expected) / bound
        assert error.max() < TOLERANCE
        wrong = parts | {"scales": parts["scales"] * 1.001}
        assert (np.abs(product(x, wrong, bits, block)[0] - expected) / bound).max() > TOLERANCE, (
            "a bound that cannot fail"
        )


def test_the_function_runs_where_the_library_is_absent(library):
    parts = random_weights(64, 256, 4, 32, zero_points=True)
    sizes = {"N": 64, "K": 256, "bits": 4, "block_size": 32}
    x = np.random.default_rng(0).standard_normal((2, 3, 256)).astype(np.float32)

    def run(graph, *options):
        return session_of(graph, *options).run(None, {"A": x})[0]

    with_function, alone = graph_of(parts, **sizes), graph_of(parts, function=False, **sizes)
    contrib = run(graph_of(parts, domain="com.microsoft", function=False, **sizes))
    assert contrib.shape == (2, 3, 64)
    np.testing.assert_array_equal(run(with_function), contrib)
    np.testing.assert_array_equal(run(with_function, library), run(alone, library))
    assert not np.array_equal(run(with_function, library), contrib), "its scales are halves"
    with pytest.raises(onnxruntime_errors(), match="edgeformer:MatMulNBits.* is not a registered function/op"):
        run(alone)


def test_results_do_not_depend_on_threads(library):
    parts = random_weights(500, 512, 4, 64, zero_points=False)
    graph = graph_of(parts, N=500, K=512, bits=4, block_size=64)
    sessions = [session_of(graph, library, *threads) for threads in ((1,), (2,), (1, 2), (1, 3))]
    for rows in (1, 200):
        x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
        first, *others = [session.run(None, {"A": x})[0] for session in sessions]
        assert all(np.array_equal(first, other) for other in others)
        # Sessions with teams share them; a team that is busy leaves a caller to work alone.
        with ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda index: sessions[index % 4].run(None, {"A": x})[0], range(40)):  # noqa: B023
                np.testing.assert_array_equal(answer, first)


@pytest.mark.skipif(not SMAPS.is_file(), reason="2026-11-24: only Linux tells which pages of a file a process has")
def test_once_packed_the_weights_of_the_file_leave_memory(library, tmp_path):
    parts = random_weights(4096, 2048, 4, 32, zero_points=False)
    graph = graph_of(parts, N=4096, K=2048, bits=4, block_size=32)
    onnx.save(
        onnx.load_from_string(graph),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=0,
    )
    sessions = [session_of(str(tmp_path / "model.onnx"), library, team=team) for team in (None, 2)]
    assert sum(kilobytes for path, kilobytes in resident_files() if path == tmp_path / "data") < 64
    x = np.random.default_rng(0).standard_normal((2, 2048)).astype(np.float32)
    answers = [session.run(None, {"A": x})[0] for session in sessions]
    np.testing.assert_array_equal(answers[0], session_of(graph, library).run(None, {"A": x})[0])
    np.testing.assert_array_equal(*answers)


def resident_files():
    """Paths of the files that are mapped into this process, and how many kB of each mapping it has."""
    path = None
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            path = Path(words[5]) if len(words) > 5 else None
        elif words[0] == "Rss:" and path is not None:
            yield path, int(words[1])


def test_no_rows_are_no_work(library):
    parts = random_weights(8, 32, 4, 32, zero_points=False)
    session = session_of(graph_of(parts, N=8, K=32, bits=4, block_size=32), library)
    assert session.run(None, {"A": np.zeros((2, 0, 32), np.float32)})[0].shape == (2, 0, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"K": 33}, "B has 128 elements; these attributes want 256"),
        ({"N": 16}, "B has 128 elements; these attributes want 256"),
        ({"bits": 2}, "bits must be 4 or 8, not 2"),
        ({"block_size": 0}, "block_size is 0"),
        ({"bits": -1}, "bits is -1"),
        ({"packed_bits": 7}, "packed_bits is 7; it must be 3 of 4 bits, or 5 or 6 of 8"),
        ({"packed_bits": 5}, "packed_bits is 5; it must be 3 of 4 bits, or 5 or 6 of 8"),
        ({"packed_bits": 3}, "B has 128 elements; these attributes want 96"),
    ],
)
def test_wrong_sizes_are_refused_when_a_session_is_opened(library, changed, message):
    sizes = {"N": 8, "K": 32, "bits": 4, "block_size": 32} | changed
    graph = graph_of(random_weights(8, 32, 4, 32, zero_points=False), **sizes)
    with pytest.raises(onnxruntime_errors(), match=f"edgeformer::MatMulNBits: {message}"):
        session_of(graph, library)


def test_other_wrong_inputs_are_refused(library):
    parts = random_weights(8, 32, 4, 32, zero_points=True)
    sizes = {"N": 8, "K": 32, "bits": 4, "block_size": 32}
    with pytest.raises(onnxruntime_errors(), match="B must be a constant"):
        session_of(graph_of(parts, constant=False, **sizes), library)
    with pytest.raises(onnxruntime_errors(), match="zero_points has 9 elements; these attributes want 8"):
        session_of(graph_of(parts | {"zero_points": np.zeros(9, np.uint8)}, **sizes), library)
    with pytest.raises(onnxruntime_errors(), match="a scale is not finite"):
        session_of(graph_of(parts | {"scales": np.full((8, 1), np.inf, np.float32)}, **sizes), library)
    session = session_of(graph_of(parts, **sizes), library)
    with pytest.raises(onnxruntime_errors(), match="the last dimension of A must be K, 32"):
        session.run(None, {"A": np.zeros((4, 16), np.float32)})
    with pytest.raises(onnxruntime_errors(), match="edgeformer.threads must be a number up to 1024, not many"):
        session_of(graph_of(parts, **sizes), library, team="many")
