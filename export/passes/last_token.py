"""Compute of the last token alone what only its logits need.

    attention [B, S, H·D] → MatMul → + x → RMSNorm → … → MatMul → logits [B, S, V]

becomes

    attention → Slice(−1:), x → Slice(−1:) → MatMul → + → RMSNorm → … → MatMul → logits [B, 1, V]

Behind the last attention no token sees another. So the head, the last feed-forward and the projection before it work on
one token. Requires ops that treat tokens alike, and that the product that makes the logits is one of them.
"""

import onnx_ir as ir

from edgeformer.export.canonical import DOMAIN
from edgeformer.export.emit import Emitter
from edgeformer.export.passes._report import PassReport

ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Gelu", "Identity", "Max", "Min", "Mul", "Neg", "Pow",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip


def last_token(model: ir.Model) -> PassReport:
    """Cut what goes into the last part of a decoder to the last token."""
    report = PassReport("last_token")
    tokens = next(value for value in model.graph.inputs if value.name == "input_ids").shape[1]  # type: ignore[index]
    logits = next(output for output in model.graph.outputs if output.name == "logits")
    maker = logits.producer()
    assert maker is not None
    alone = _nodes_alone(model, tokens, logits)
    if maker not in alone or all(node.op_type != "MatMul" for node in alone):
        report.miss(maker, "no product with a weight makes the logits")
        return report
    cut: dict[ir.Value, ir.Value] = {}
    for node in alone:
        for place, value in enumerate(node.inputs):
            if value is None or not _by_token(value, tokens) or value.producer() in alone:
                continue
            if value not in cut:
                cut[value] = _last(value, node)
            node.replace_input_with(place, cut[value])
        report.fire(node)
    for value in (output for node in alone for output in node.outputs):
        value.shape = _of_one(value)
    return report


def _nodes_alone(model: ir.Model, tokens: object, logits: ir.Value) -> list[ir.Node]:
    """Nodes in order that treat tokens alike, and whose results nothing needs but such nodes and the logits."""
    alone: set[ir.Node] = set()
    for node in reversed(model.graph):
        read = [output for output in node.outputs if output.uses() or output.is_graph_output()]
        needed = any(
            (output.is_graph_output() and output is not logits) or any(use.node not in alone for use in output.uses())
            for output in read
        )
        if read and not needed and _treats_tokens_alike(node, tokens):
            alone.add(node)
    return [node for node in model.graph if node in alone]


def _treats_tokens_alike(node: ir.Node, tokens: object) -> bool:
    inputs = [value for value in node.inputs if value is not None]
    if not inputs or not all(_by_token(value, tokens) or _is_constant(value) for value in inputs):
        return False
    match node.domain, node.op_type:
        case "", "MatMul":
            return _by_token(inputs[0], tokens) and _is_constant(inputs[1])
        case "", "LayerNormalization":
            return node.attributes.get_int("axis", -1) == -1
        case domain, "RMSNorm":
            return domain == DOMAIN
        case domain, op:
            return domain == "" and op in ELEMENTWISE and any(_by_token(value, tokens) for value in inputs)


def _by_token(value: ir.Value, tokens: object) -> bool:
    """Whether a value is [B, S, …]. What torch decomposes has values in it without a shape."""
    maker = value.producer()
    if value.shape is None:
        return maker is not None and _treats_tokens_alike(maker, tokens)
    return [axis for axis, size in enumerate(value.shape) if size == tokens] == [1]


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is a weight or a number, or made of nothing else."""
    maker = value.producer()
    if maker is None:
        return value.const_value is not None
    return all(each is None or _is_constant(each) for each in maker.inputs)


def _last(value: ir.Value, reader: ir.Node) -> ir.Value:
    """The last token of a value, for a node that reads it."""
    emit = Emitter(f"{value.name}/last")
    last = emit("Slice", value, emit.constant([-1]), emit.constant([2**31 - 1]), emit.constant([1]))
    last.type, last.shape = value.type, _of_one(value)
    assert reader.graph is not None
    reader.graph.insert_before(reader, emit.nodes)
    return last


def _of_one(value: ir.Value) -> ir.Shape | None:
    return value.shape and ir.Shape([value.shape[0], 1, *list(value.shape)[2:]])
