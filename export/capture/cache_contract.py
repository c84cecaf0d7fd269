"""Check that the caches of a user's module go through our attention op, and through nothing else."""

import onnx_ir as ir

from edgeformer.contract import past_names, present_names
from edgeformer.errors import ExportError
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.model_spec import ModelSpec


def check_caches(graph: ir.Model, model_spec: ModelSpec) -> None:
    """Raise ExportError unless the canonical graph's caches go through the attention op and nowhere else."""
    inputs = {value.name: value for value in graph.graph.inputs}
    for name in past_names(model_spec.cache):
        for use in inputs[name].uses():
            if not (_is_attention(use.node) or _is_batch_size(use.node)):
                raise ExportError(_outside(f"{name} is read by {use.node.name}"))
    outputs = {value.name: value for value in graph.graph.outputs}
    for name in present_names(model_spec.cache):
        node = outputs[name].producer()
        if not _is_attention(node):
            raise ExportError(_outside(f"{name} is made by {node.name if node else 'nothing'}"))


def _is_attention(node: ir.Node | None) -> bool:
    return node is not None and (node.domain, node.op_type) == (DOMAIN, "GroupQueryAttention")


def _is_batch_size(node: ir.Node) -> bool:
    """The exporter asks any input at hand for the number of rows."""
    ends = node.attributes.get_int("start", 0), node.attributes.get_int("end", 0)
    return node.op_type == "Shape" and ends == (0, 1)


def _outside(what: str) -> str:
    return (
        f"{what} instead of edgeformer.ops.group_query_attention. A client's cache is one buffer for the longest text, "
        "and only that op knows which part of it is valid: call it for each layer, with the layer's key and value as "
        "they come, and return the key and value that it returns."
    )
