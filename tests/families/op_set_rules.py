"""Which ops an op set may have: those of ONNX in one version, and functions that come with the graph."""

import onnx

OPSETS = {
    "ort": 20, "standard": 23, "standard static": 24, "portable": 18, "portable static": 18, "portable functions": 18,
}  # fmt: skip
"""The version of ONNX that each kind of graph says it is written in."""


def assert_domains(graph, opset):
    """Nothing but ONNX of this version and, within the graph, functions of ours."""
    own = {"edgeformer": 1} if graph.functions else {}
    assert {each.domain: each.version for each in graph.opset_import} == {"": opset} | own
    for function in graph.functions:
        assert function.domain == "edgeformer"
        assert {each.domain: each.version for each in function.opset_import} == {"": opset}


def foreign_ops(graph, opset):
    """Ops of a graph, and of its functions, that are neither in this version of ONNX as they stand nor functions."""
    functions = {(function.domain, function.name) for function in graph.functions}
    bodies = [graph.graph.node, *(function.node for function in graph.functions)]
    nodes = [node for body in bodies for node in with_subgraphs(body)]
    return {node.op_type for node in nodes if (node.domain, node.op_type) not in functions and not exists(node, opset)}


def with_subgraphs(nodes):
    """All nodes, those inside an If or Loop too."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from with_subgraphs(inner.node)


def exists(node, opset):
    """Whether ONNX has the op in this version, with all attributes, inputs and outputs of the node."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return False
    return (
        node.domain == ""
        and not schema.deprecated
        and {attribute.name for attribute in node.attribute} <= schema.attributes.keys()
        and schema.min_input <= len(node.input) <= schema.max_input
        and len(node.output) <= schema.max_output
    )


def inputs_without_a_call(graph):
    """Inputs that bodies of functions name and no call has, by function; a function that nothing calls has all."""
    bodies = {each.name: list(with_subgraphs(each.node)) for each in graph.functions}
    nodes = [*with_subgraphs(graph.graph.node), *(node for body in bodies.values() for node in body)]
    found = {}
    for function in graph.functions:
        calls = [node for node in nodes if (node.domain, node.op_type) == (function.domain, function.name)]
        given = {name for call in calls for name, value in zip(function.input, call.input, strict=False) if value}
        named = {name for node in bodies[function.name] for name in node.input} & set(function.input)
        if named - given:
            found[function.name] = sorted(named - given)
    return found


def check(graph):
    """onnx's own checker, with inference of every type and shape."""
    checked = onnx.ModelProto()
    checked.CopyFrom(graph)
    for node in checked.graph.node:
        # onnxruntime keeps an op of its own in ONNX's domain, where the checker misses its schema. Domains that it
        # does not know it passes over: of `ort` graphs it sees the standard nodes, the order of all and their names.
        if node.op_type == "SimplifiedLayerNormalization":
            node.domain = "com.microsoft"
    onnx.checker.check_model(checked, full_check=True)
