"""Outline nodes of a graph: put a call of a function of the model in the place of what computes a value.

The function's body is the nodes that were there. So the graph computes the same wherever functions are inlined, and a
program that has a kernel of the function's name may run that instead.
"""

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from edgeformer.contract.ops import DOMAIN
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import VERSION
from edgeformer.export.graph.editing import remove_if_unused

SizeRefs = Mapping[ir.Node, Mapping[str, str]]
"""Attributes of nodes that are attributes of the function: node → the node's attribute → the function's."""


def add_function(model: ir.Model, function: ir.Function) -> None:
    """Add a function to the model, unless it has it.

    Raises AssertionError for another body of the same name: a kernel of that name computes one of them.
    """
    known = model.functions.setdefault(function.identifier(), function)
    assert _bytes(known) == _bytes(function), f"{function.name} is called with two bodies, which need two names"
    model.opset_imports[DOMAIN] = VERSION


def trim_functions(model: ir.Model) -> None:
    """Leave out functions that nothing calls, and of the others the inputs that no call has.

    A body names every input that its op may have, and an onnxruntime whose version of the op has fewer does not load
    the function, even where no call has more.
    """
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            calls.setdefault(node.op_identifier(), []).append(node)
    for identifier, function in list(model.functions.items()):
        if identifier not in calls:
            del model.functions[identifier]
            continue
        count = max(_last_input(call) for call in calls[identifier])
        for place, value in enumerate(function.inputs):
            if place >= count or all(call.inputs[place : place + 1] in ((), (None,)) for call in calls[identifier]):
                for node, index in list(value.uses()):
                    node.replace_input_with(index, None)
                    node.resize_inputs(_last_input(node))
        del function.inputs[count:]


def _last_input(node: ir.Node) -> int:
    """Return the number of inputs up to the last one that the node has."""
    return max((place for place, value in enumerate(node.inputs, start=1) if value is not None), default=0)


def _bytes(function: ir.Function) -> bytes:
    return ir.serde.serialize_function(function).SerializeToString(deterministic=True)


def outline(
    model: ir.Model,
    name: str,
    inputs: Mapping[str, ir.Value],
    output: ir.Value,
    sizes: Mapping[str, int],
    refs: SizeRefs,
    opsets: Mapping[str, int],
) -> None:
    """Put a call of the function `name` in the place of the nodes that compute `output` from `inputs`.

    inputs: by formal names, in the order of the call. sizes: attributes of the call. opsets: of the body. Nodes that
    others read, too, stay for them. Raises AssertionError if `output` depends on something else.
    """
    nodes = _nodes_between(set(inputs.values()), output)
    add_function(model, _function(name, inputs, output, nodes, sizes, refs, opsets))
    last = nodes[-1]
    emit = NodeBuilder.replacing(last, "outlined by lower/ort")
    replace_node(last, emit, [emit(name, *inputs.values(), domain=DOMAIN, **sizes)])
    remove_if_unused(model, *reversed(nodes[:-1]))


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with bodies of functions in the place of their calls, in branches, too."""
    inlined = ir.from_proto(model)
    InlinePass()(inlined)
    return ir.to_proto(inlined)


def _nodes_between(inputs: set[ir.Value], output: ir.Value) -> list[ir.Node]:
    """All nodes on the ways from the inputs to the output, each behind those that it reads."""
    nodes: dict[ir.Node, None] = {}

    def visit(value: ir.Value | None) -> None:
        if value is None or value in inputs:
            return
        node = value.producer()
        assert node is not None, f"{value.name} is no input of what is outlined"
        if node not in nodes:
            for each in node.inputs:
                visit(each)
            nodes[node] = None

    visit(output)
    return list(nodes)


def _function(
    name: str,
    inputs: Mapping[str, ir.Value],
    output: ir.Value,
    nodes: list[ir.Node],
    sizes: Iterable[str],
    refs: SizeRefs,
    opsets: Mapping[str, int],
) -> ir.Function:
    formal = {actual: ir.Value(name=given) for given, actual in inputs.items()}
    inside = dict(formal)
    copies = []
    for index, node in enumerate(nodes):
        given = refs.get(node, {})
        attributes = [
            ir.RefAttr(each.name, given[each.name], each.type) if each.name in given else each
            for each in node.attributes.values()
        ]
        read = [None if value is None else inside[value] for value in node.inputs]
        copy = ir.Node(
            node.domain, node.op_type, read, attributes, num_outputs=len(node.outputs), name=f"{node.op_type}_{index}"
        )
        for place, (theirs, mine) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            inside[theirs] = mine
            mine.name = f"{copy.name}_output_{place}"
        copies.append(copy)
    result = copies[-1].outputs[nodes[-1].outputs.index(output)]
    result.name = "Y"
    graph = ir.Graph(list(formal.values()), [result], nodes=copies, opset_imports=dict(opsets), name=name)
    attributes = [ir.Attr(each, ir.AttributeType.INT, None) for each in sizes]
    return ir.Function(DOMAIN, name, graph=graph, attributes=attributes)
