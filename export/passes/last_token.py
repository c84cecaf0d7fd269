"""Compute of the last token alone what only its logits need.

    attention [B, S, H·D] → MatMul → + x → RMSNorm → … → MatMul → logits [B, S, V]

becomes

    attention → Slice(−1:), x → Slice(−1:) → MatMul → + → RMSNorm → … → MatMul → logits [B, 1, V]

Behind the last attention no token sees another. So the head, the last feed-forward and the projection before it work on
one token. Requires ops that treat tokens alike, and that the product that makes the logits is one of them.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.pass_report import PassReport

ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Gelu", "Identity", "Max", "Min", "Mul", "Neg", "Pow",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip


def last_token(model: ir.Model) -> PassReport:
    """Cut what goes into the last part of a decoder to the last token."""
    report = PassReport("last_token")
    logits = next(output for output in model.graph.outputs if output.name == "logits")
    maker = logits.producer()
    assert maker is not None
    alike, per_token = _by_token(model)
    alone = _alone(model, alike, logits)
    if maker not in alone or all(node.op_type != "MatMul" for node in alone):
        report.miss(maker, "no product with a weight makes the logits")
        return report
    cut: dict[ir.Value, ir.Value] = {}
    for node in alone:
        for place, value in enumerate(node.inputs):
            if value is None or value not in per_token or value.producer() in alone:
                continue
            if value not in cut:
                cut[value] = _last(value, node)
            node.replace_input_with(place, cut[value])
        report.fire(node)
    for value in (output for node in alone for output in node.outputs):
        value.shape = _of_one(value)
    return report


def _by_token(model: ir.Model) -> tuple[set[ir.Node], set[ir.Value | None]]:
    """Nodes that treat tokens alike, and values [B, S, …]. What torch decomposes has values in it without a shape."""
    tokens = next(value for value in model.graph.inputs if value.name == "input_ids").shape[1]  # type: ignore[index]
    alike: set[ir.Node] = set()
    per_token: set[ir.Value | None] = set()
    constant: set[ir.Value | None] = {None}
    for node in model.graph:
        constant |= {value for value in node.inputs if value is not None and value.const_value is not None}
        if constant.issuperset(node.inputs):
            constant.update(node.outputs)
        elif _treats_tokens_alike(node, constant) and all(
            each in per_token or each in constant for each in node.inputs
        ):
            alike.add(node)
            per_token.update(node.outputs)
        else:
            per_token |= {output for output in node.outputs if _axes(output, tokens) == [1]}
    return alike, per_token


def _axes(value: ir.Value, size: object) -> list[int]:
    """The axes of a value that are so long."""
    return [axis for axis, each in enumerate(value.shape or ()) if each == size]


def _treats_tokens_alike(node: ir.Node, constant: set[ir.Value | None]) -> bool:
    """Of a node whose inputs are [B, S, …] or constant."""
    match node.domain, node.op_type:
        case "", "MatMul":
            return node.inputs[1] in constant
        case "", "LayerNormalization":
            return node.attributes.get_int("axis", -1) == -1
        case domain, "RMSNorm":
            return domain == DOMAIN
        case domain, op:
            return domain == "" and op in ELEMENTWISE


def _alone(model: ir.Model, alike: set[ir.Node], logits: ir.Value) -> list[ir.Node]:
    """Such nodes whose results nothing needs but nodes of this kind and the logits, in order."""
    alone: set[ir.Node] = set()
    for node in reversed(model.graph):
        needed = any(
            (output.is_graph_output() and output is not logits) or any(use.node not in alone for use in output.uses())
            for output in node.outputs
        )
        if node in alike and not needed:
            alone.add(node)
    return [node for node in model.graph if node in alone]


def _last(value: ir.Value, reader: ir.Node) -> ir.Value:
    """The last token of a value, for a node that reads it."""
    assert reader.graph is not None
    emit = NodeBuilder(f"{value.name}/last")
    last = emit("Slice", value, emit.constant([-1]), emit.constant([2**31 - 1]), emit.constant([1]))
    last.type, last.shape = value.type, _of_one(value)
    reader.graph.insert_before(reader, emit.nodes)
    return last


def _of_one(value: ir.Value) -> ir.Shape | None:
    return value.shape and ir.Shape([value.shape[0], 1, *list(value.shape)[2:]])
