"""Products of a graph read packed integers as the file has them, and whoever else reads them still finds bytes."""

import onnx
import pytest
from onnx import TensorProto, helper

from edgeformer.runtime.sessions.graphs.packed_weights import with_packed_weights

OPS = ("MatMulNBits", "AddRMSNorm")


def saved(folder, *others, unpack="Unpack6Bits"):
    """Save a graph of one product over unpacked integers, and of other nodes; return its path."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(unpack, ["W"], ["bytes"], domain="edgeformer"),
        helper.make_node("MatMulNBits", ["A", "bytes", "scales"], ["Y"], domain="edgeformer", bits=8, block_size=32),
        *others,
    ]
    weights = [
        helper.make_tensor("W", TensorProto.UINT8, (8, 1, 3, 8), bytes(8 * 24), raw=True),
        helper.make_tensor("scales", TensorProto.FLOAT, (8, 1), bytes(32), raw=True),
    ]
    inputs = [value("A", TensorProto.FLOAT, (1, 32)), value("C", TensorProto.BOOL, ())]
    graph = helper.make_graph(nodes, "g", inputs, [value("Y", TensorProto.FLOAT, (1, 8))], weights)
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    return folder / "model.onnx"


def nodes_of(content):
    return onnx.load_from_string(content).graph.node


def branch():
    """A node whose branches read the bytes as a value of the graph around them."""
    output = helper.make_tensor_value_info("Z", TensorProto.UINT8, None)
    inner = helper.make_graph([helper.make_node("Identity", ["bytes"], ["Z"])], "inner", [], [output])
    return helper.make_node("If", ["C"], ["chosen"], then_branch=inner, else_branch=inner)


def test_a_product_alone_leaves_nothing_to_unpack(tmp_path):
    (product,) = nodes_of(with_packed_weights(saved(tmp_path), OPS, None))
    assert list(product.input) == ["A", "W", "scales"]
    assert {each.name: each.i for each in product.attribute} == {"bits": 8, "block_size": 32, "packed_bits": 6}


@pytest.mark.parametrize("other", [helper.make_node("Gather", ["bytes", "C"], ["rows"]), branch()])
def test_bytes_stay_for_whoever_else_reads_them(tmp_path, other):
    unpacking, product, _ = nodes_of(with_packed_weights(saved(tmp_path, other), OPS, None))
    assert (unpacking.op_type, product.input[1]) == ("Unpack6Bits", "W")


def test_other_ops_read_bytes(tmp_path):
    """Kernels that lack the op run its body, which knows no packed integers."""
    unpacking, product = nodes_of(with_packed_weights(saved(tmp_path), ("AddRMSNorm",), None))
    assert unpacking.output[0] == product.input[1] == "bytes"


def test_what_has_nothing_packed_stays_as_it_is(tmp_path):
    path = saved(tmp_path, unpack="UnpackOthers")
    assert with_packed_weights(path, OPS, None) is None
    assert with_packed_weights(path, OPS, b"given") == b"given"
    (tmp_path / "damaged.onnx").write_bytes(b"\x3a\xff\xff\xff\x7fUnpack6Bits")
    assert with_packed_weights(tmp_path / "damaged.onnx", OPS, None) is None
