"""Keep canonical ops in a graph, each as a function of the model whose body is in primitives.

A viewer shows one node `edgeformer.GroupQueryAttention` with its attributes, and a vendor may replace it by a kernel. A
function body cannot depend on attributes, so an op that a model uses in several ways (with a window and without one) is
several functions: GroupQueryAttention, GroupQueryAttention_2 …
"""

from collections.abc import Callable

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph.builder import NodeBuilder, Outputs
from edgeformer.export.graph.canonical import INPUTS, VERSION
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.graph.function_bodies import FUNCTION_BODIES
from edgeformer.export.graph.pass_report import PassReport


def keep_as_functions(model: ir.Model, form: CacheForm) -> PassReport:
    """Add a function to the model for every canonical op that is left in it."""
    report = PassReport("functions")
    names: dict[tuple[str, bytes], str] = {}
    for node in canonical_nodes(model, *FUNCTION_BODIES):
        function = function_of_node(node, node.op_type, _body_of(node, form))
        key = node.op_type, ir.serde.serialize_function(function).SerializeToString(deterministic=True)
        if key not in names:
            count = sum(op == node.op_type for op, _ in names) + 1
            names[key] = node.op_type if count == 1 else f"{node.op_type}_{count}"
            function.name = names[key]
            model.functions[function.identifier()] = function
        node.op_type = names[key]
        report.fire(node)
    if names:
        model.opset_imports[DOMAIN] = VERSION
    return report


def _body_of(node: ir.Node, form: CacheForm) -> Callable[[NodeBuilder, ir.Node], Outputs]:
    body = FUNCTION_BODIES[node.op_type]
    return lambda emit, call: body(emit, call, form)


def function_of_node(
    node: ir.Node, name: str, body: Callable[[NodeBuilder, ir.Node], Outputs], opset: int = 18
) -> ir.Function:
    """Return a function that computes what a canonical node does; its inputs have the names of the op's.

    body: emits it for a node over these inputs. opset: of the body.
    """
    formal = INPUTS[node.op_type][: len(node.inputs)]
    inputs = [
        ir.Value(name=each, type=value.type, shape=value.shape) if value is not None else ir.Value(name=each)
        for each, value in zip(formal, node.inputs, strict=True)
    ]
    given = [each if value is not None else None for each, value in zip(inputs, node.inputs, strict=True)]
    call = ir.Node(node.domain, node.op_type, given, list(node.attributes.values()), num_outputs=len(node.outputs))
    for mine, theirs in zip(call.outputs, node.outputs, strict=True):
        mine.type, mine.shape = theirs.type, theirs.shape
    emit = NodeBuilder(name)
    outputs = body(emit, call)
    opsets = {"": opset} | {each.domain: 1 for each in emit.nodes if each.domain}
    graph = ir.Graph(inputs, outputs, nodes=emit.nodes, opset_imports=opsets, name=name)
    for index, output in enumerate(graph.outputs):
        output.name = f"output_{index}"
    attributes = [ir.Attr(each.name, each.type, None) for each in node.attributes.values()]
    return ir.Function(DOMAIN, name, graph=graph, attributes=attributes)
