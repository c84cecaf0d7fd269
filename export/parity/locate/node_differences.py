"""Describe how a node of a stored graph differs from the node of the same name in a fresh lowering."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.quantize.quantized_tensor import by_matrix


class Wiring:
    """The nodes of a graph, and names for the values they read that do not depend on the numbering of values."""

    def __init__(self, graph: onnx.GraphProto):
        self.nodes = {node.name: node for node in graph.node}
        self.outputs = {output.name for output in graph.output}
        self._made = {
            name: f"output {index} of {node.name or 'an unnamed ' + node.op_type}"
            for node in graph.node
            for index, name in enumerate(node.output)
            if name
        }
        self._constants = {
            tensor.name: f"the constant {onnx.numpy_helper.to_array(tensor).tolist()}"
            for tensor in graph.initializer
            if tensor.data_location != onnx.TensorProto.EXTERNAL and np.prod(tensor.dims) <= 8
        }

    def reads(self, name: str) -> str:
        """Describe a value by the node that computes it, or by its content."""
        return self._made.get(name) or self._constants.get(name) or name or "nothing"


def node_differences(stored: Wiring, fresh: Wiring, name: str) -> Iterator[str]:
    """Yield the differences in op, inputs, outputs and attributes between a node and that of a fresh lowering."""
    ours, theirs = stored.nodes[name], fresh.nodes[name]
    if (ours.domain, ours.op_type) != (theirs.domain, theirs.op_type):
        yield f"is a {ours.op_type} where a fresh lowering has a {theirs.op_type}"
    for index in range(max(len(ours.input), len(theirs.input))):
        read, meant = (
            wiring.reads(node.input[index] if index < len(node.input) else "")
            for wiring, node in ((stored, ours), (fresh, theirs))
        )
        if read != meant:
            yield f"reads {read} where a fresh lowering reads {meant}"
    for made, meant in zip(ours.output, theirs.output, strict=False):
        if made != meant and not stored.outputs.isdisjoint((made, meant)):
            yield f"makes {made} where a fresh lowering makes {meant}"
    settings = [{each.name: _setting(each) for each in node.attribute} for node in (ours, theirs)]
    for key in sorted(settings[0].keys() | settings[1].keys()):
        has, should = (setting.get(key, "unset") for setting in settings)
        if has != should:
            yield f"has {key} {has} where a fresh lowering has {should}"


def _setting(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def wrong_weights(graph: onnx.GraphProto, folder: Path, weights: Mapping[str, StreamedTensor]) -> dict[str, float]:
    """Return the error of each weight of a stored graph that differs from the given one, by name.

    The error is max |Δ| / max |weight|, or NaN for another shape. A difference of one rounding is ignored, since
    another machine may compute a position table with another last bit.
    """
    wrong = {}
    initializers = {tensor.name: tensor for tensor in graph.initializer if tensor.name in weights}
    for name, weight in by_matrix({name: weights[name] for name in initializers}):
        stored, given = onnx.numpy_helper.to_array(initializers[name], str(folder)), weight.read().numpy()
        if stored.shape != given.shape:
            wrong[name] = float("nan")
        elif not np.array_equal(stored, given):
            with np.errstate(over="ignore"):
                error = float(np.abs(stored - given).max()) / (float(np.abs(given).max()) or 1.0)
            if not error <= np.finfo(given.dtype).eps:
                wrong[name] = error
    return wrong
