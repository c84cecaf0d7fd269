"""Keep canonical ops in a graph, each as a function of the model whose body is in primitives.

A viewer shows one node `edgeformer.GroupQueryAttention` with its attributes, and a vendor may replace it by a kernel. A
function body cannot depend on attributes, so an op that a model uses in several ways (with a window and without one) is
several functions: GroupQueryAttention, GroupQueryAttention_2 …
"""

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import CacheForm
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import INPUTS, VERSION
from edgeformer.export.graph.editing import canonical_nodes
from edgeformer.export.graph.function_bodies import FUNCTION_BODIES
from edgeformer.export.graph.pass_report import PassReport


def keep_as_functions(model: ir.Model, form: CacheForm) -> PassReport:
    """Add a function to the model for every canonical op that is left in it."""
    report = PassReport("functions")
    names: dict[tuple[str, bytes], str] = {}
    for node in canonical_nodes(model, *FUNCTION_BODIES):
        function = _function(node, form)
        body = ir.serde.serialize_function(function).SerializeToString(deterministic=True)
        key = node.op_type, body
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


def _function(node: ir.Node, form: CacheForm) -> ir.Function:
    """The body of a node as a function, over formal inputs that have the names of the op's inputs."""
    formal = INPUTS[node.op_type][: len(node.inputs)]
    inputs = [
        ir.Value(name=name, type=value.type, shape=value.shape) if value is not None else ir.Value(name=name)
        for name, value in zip(formal, node.inputs, strict=True)
    ]
    given = [each if value is not None else None for each, value in zip(inputs, node.inputs, strict=True)]
    call = ir.Node(node.domain, node.op_type, given, list(node.attributes.values()), num_outputs=len(node.outputs))
    for mine, theirs in zip(call.outputs, node.outputs, strict=True):
        mine.type, mine.shape = theirs.type, theirs.shape
    emit = NodeBuilder(node.op_type)
    outputs = FUNCTION_BODIES[node.op_type](emit, call, form)
    graph = ir.Graph(inputs, outputs, nodes=emit.nodes, opset_imports={"": 18}, name=node.op_type)
    for index, output in enumerate(graph.outputs):
        output.name = f"output_{index}"
    attributes = [ir.Attr(each.name, each.type, None) for each in node.attributes.values()]
    return ir.Function(DOMAIN, node.op_type, graph=graph, attributes=attributes)
