"""Providers whose kernels are wrong: sessions of verification open another graph than the bundle's, which is right."""

from pathlib import Path

import onnx
from onnx import numpy_helper

from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity import float_products, verification
from edgeformer.runtime.sessions.session import open_session


def substitute(graph):
    """Compute a tanh where a graph says sigmoid, in one layer."""
    next(node for node in graph.node if node.op_type == "Sigmoid").op_type = "Tanh"


def mask_off_by_one(graph):
    """Hide the newest token of every row from attention: its length less 1 becomes its length less 2."""
    (node,) = (node for node in graph.node if node.op_type == "Sub")
    graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(_constant(graph, node.input[1])) + 1, "two"))
    node.input[1] = "two"


def _constant(graph, name):
    found = [tensor for tensor in graph.initializer if tensor.name == name]
    found += [node.attribute[0].t for node in graph.node if node.op_type == "Constant" and node.output[0] == name]
    (tensor,) = found
    return tensor


WRONG = {"a substituted op": substitute, "a mask off by one": mask_off_by_one}


def plant(patch, fault):
    """Make the sessions that verification opens compute with a fault of WRONG. patch: pytest's monkeypatch."""

    def open_wrong(path, *arguments, **options):
        model = inline_functions(onnx.load(path, load_external_data=False))
        WRONG[fault](model.graph)
        wrong = Path(path).with_name("wrong.onnx")
        onnx.save(model, wrong)
        try:
            return open_session(wrong, *arguments, **options)
        finally:
            wrong.unlink()

    for module in (float_products, verification):
        patch.setattr(module, "open_session", open_wrong)
