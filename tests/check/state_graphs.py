"""Small graphs over any cache, and bundles of them: no family has every mix of states that a client may be given.

The logits of a token depend on the token and on every number of every state, and every state on all tokens so far. So
a client that loses a state, or feeds one layer's to another, writes other tokens.
"""

import math
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeformer.client_files.files import write_files
from edgeformer.contract.tensors import decoder_inputs, present_names
from edgeformer.manifest.deployment import ANYWHERE
from edgeformer.manifest.manifest import Manifest

VOCABULARY = 131


class Graph:
    """Nodes and weights that are added one by one."""

    def __init__(self, seed):
        self.nodes, self.weights, self._random = [], [], np.random.default_rng(seed)

    def add(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name, value):
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def matrix(self, name, rows, columns, gain=1):
        value = gain * self._random.standard_normal((rows, columns)) / rows**0.5
        return self.constant(name, value.astype(np.float32))


def state_graph(geometry, seed=0):
    """Return a decoder graph with a dynamic cache of this geometry."""
    graph = Graph(seed)
    ids = graph.add("Gather", [graph.matrix("table", VOCABULARY, VOCABULARY, gain=0.5), "input_ids"], "x")
    mean = graph.add("ReduceMean", [ids, graph.constant("tokens", [1])], "mean", keepdims=0)
    read = []
    for tensor in geometry.tensors():
        name, sizes = tensor.past, tensor.shape(1, 1)[1:]
        made = graph.matrix(f"{name}.made", VOCABULARY, math.prod(sizes))
        if tensor.per_token:
            flat = graph.add("MatMul", [ids, made], f"{name}.flat")
            heads = graph.constant(f"{name}.heads", [0, 0, sizes[0], sizes[2]])
            split = graph.add("Reshape", [flat, heads], f"{name}.split")
            new = graph.add("Transpose", [split], f"{name}.new", perm=[0, 2, 1, 3])
            graph.add("Concat", [name, new], tensor.present, axis=2)
            kept = graph.add(
                "ReduceMean", [tensor.present, graph.constant(f"{name}.axis", [2])], f"{name}.kept", keepdims=0
            )
        else:
            flat = graph.add("MatMul", [mean, made], f"{name}.flat")
            new = graph.add("Reshape", [flat, graph.constant(f"{name}.sizes", [0, *sizes])], f"{name}.new")
            kept = graph.add("Tanh", [name], f"{name}.kept")
            graph.add("Add", [kept, new], tensor.present)
        rows = graph.add("Reshape", [kept, graph.constant(f"{name}.row", [0, -1])], f"{name}.rows")
        back = graph.matrix(f"{name}.back", math.prod(sizes), VOCABULARY, gain=16)
        read.append(graph.add("MatMul", [rows, back], f"{name}.read"))
    total = graph.add("Sum", [mean, *read], "total")
    row = graph.add("Unsqueeze", [total, graph.constant("token", [1])], "row")
    graph.add("Add", [ids, row], "logits")
    return _model(graph, geometry)


def _model(graph, geometry):
    inputs = decoder_inputs(geometry)
    pasts = [
        helper.make_tensor_value_info(spec.name, TensorProto.INT64 if spec.integer else TensorProto.FLOAT, spec.dims)
        for spec in inputs
    ]
    dims = {spec.name: spec.dims for spec in inputs}
    outputs = [("logits", ("batch_size", "sequence_length", VOCABULARY))]
    for tensor, name in zip(geometry.tensors(), present_names(geometry), strict=True):
        sizes = dims[tensor.past]
        outputs.append((name, ["total_sequence_length" if size == "past_sequence_length" else size for size in sizes]))
    presents = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in outputs]
    made = helper.make_graph(graph.nodes, "states", pasts, presents, graph.weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def state_bundle(folder, geometry, like, hf_config=None):
    """Write a bundle of such a graph, with the files of every client. like: a bundle whose manifest is completed."""
    (folder / "onnx").mkdir(parents=True)
    onnx.save(state_graph(geometry), folder / "onnx" / "model.onnx")
    manifest = Manifest.read(like)
    size = (folder / "onnx" / "model.onnx").stat().st_size
    files = {manifest.graph: replace(manifest.files[manifest.graph], bytes=size)}
    plan = replace(manifest.plan, cache_form="dynamic")
    manifest = replace(manifest, cache=geometry, model=None, plan=plan, vocab_size=VOCABULARY, files=files, weights={})
    config = {"model_type": "llama", "num_hidden_layers": geometry.num_layers} if hf_config is None else hf_config
    write_files(folder, ANYWHERE, config, manifest, "It was not verified.")
    manifest.write(folder)
    return folder
