"""Bundles with a fault in a graph, and a fault of float16 caches."""

import shutil

import onnx
from onnx import TensorProto, helper

from edgeformer.export.graph.outlining import inline_functions


def faulty(folder, place, fault, name="onnx/model.onnx"):
    """Copy a bundle to `place`, and plant a fault in one of its graphs, whose functions are inlined."""
    shutil.copytree(folder, place)
    model = inline_functions(onnx.load(place / name, load_external_data=False))
    before = model.SerializeToString(deterministic=True)
    fault(model.graph)
    assert model.SerializeToString(deterministic=True) != before
    (place / name).write_bytes(model.SerializeToString())
    return place


def cast_through_bfloat16(graph):
    """One layer's values lose three bits on their way into the cache."""
    node = [each for each in graph.node if each.op_type == "GroupQueryAttention"][1]
    cast = next(each for each in graph.node if each.op_type == "Cast" and each.input[0] == node.output[2])
    graph.node.append(helper.make_node("Cast", ["narrow"], [cast.output[0]], to=TensorProto.FLOAT16))
    cast.output[0], cast.attribute[0].i = "narrow", TensorProto.BFLOAT16
