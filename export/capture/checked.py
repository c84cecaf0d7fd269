"""Capture one graph of a model, and refuse a user's module that cannot be traced or that handles its caches itself."""

import re
from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import ConvState, KeyValueState, RecurrentState
from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.editing import producer
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.manifest.parts import Arithmetic
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import ModelSpec

UPDATES: dict[type, str] = {
    KeyValueState: "GroupQueryAttention", ConvState: "CausalConv", RecurrentState: "LinearAttention",
}  # fmt: skip
"""The op that reads the past of each kind of state and makes its present."""


def capture_graph(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], arithmetic: Arithmetic, graph_spec: GraphSpec
) -> ir.Model:
    """Capture one graph of a model. Raises ExportError where a user's module cannot be traced."""
    try:
        graph = capture(graph_spec, model_spec, weights, TORCH_PRECISIONS[arithmetic])
    except Exception as error:
        # A user's module may fail in any way. A failure of our own modules is a bug, whose traceback is wanted.
        if model_spec.config is not None or isinstance(error, EdgeformerError):
            raise
        raise ExportError(
            f"torch.export cannot trace the module: {type(error).__name__}: {str(error).strip()}\n"
            "A forward may not branch on values, nor on the number of rows or tokens."
        ) from error
    if model_spec.config is None:
        check_caches(graph, model_spec)
    return graph


def check_caches(graph: ir.Model, model_spec: ModelSpec) -> None:
    """Raise ExportError unless every cache of the canonical graph goes through its op and through nothing else."""
    inputs = {value.name: value for value in graph.graph.inputs}
    outputs = {value.name: value for value in graph.graph.outputs}
    for tensor in model_spec.cache.tensors():
        op = UPDATES[type(tensor.state)]
        for use in inputs[tensor.past].uses():
            if (use.node.domain, use.node.op_type) != (DOMAIN, op) and not _is_batch_size(use.node):
                raise ExportError(_outside(f"{tensor.past} is read by {use.node.name}", op))
        if producer(outputs[tensor.present], op, DOMAIN) is None:
            node = outputs[tensor.present].producer()
            raise ExportError(_outside(f"{tensor.present} is made by {node.name if node else 'nothing'}", op))


def _is_batch_size(node: ir.Node) -> bool:
    """Whether a node reads only the number of rows, which the exporter takes from any input."""
    ends = node.attributes.get_int("start", 0), node.attributes.get_int("end", 0)
    return node.op_type == "Shape" and ends == (0, 1)


def _outside(what: str, op: str) -> str:
    name = re.sub("(?<!^)([A-Z])", r"_\1", op).lower()
    if op != UPDATES[KeyValueState]:
        return (
            f"{what} instead of edgeformer.ops.{name}. A client keeps a state in one buffer, where the present takes "
            "the place of the past, and only that op knows in which order: call it once for each layer, with the "
            "layer's state as it comes, and return the state that it returns."
        )
    return (
        f"{what} instead of edgeformer.ops.{name}. A client's cache is one buffer for the longest text, "
        "and only that op knows which part of it is valid: call it for each layer, with the layer's key and value as "
        "they come, and return the key and value that it returns."
    )
