"""Compute what only the logits need for the last token alone.

    attention [B, S, H·D] → MatMul → + x → RMSNorm → … → MatMul → logits [B, S, V]

becomes

    attention → Slice(−1:), x → Slice(−1:) → MatMul → + → RMSNorm → … → MatMul → logits [B, 1, V]

After the last attention no token reads another, so the head, the last feed-forward and the projection before it need
one token only. Requires ops that compute each token by itself, and that the product that makes the logits is one of
them.
"""

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import LOGITS_LENGTH
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import origin_of

ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Gelu", "Identity", "Max", "Min", "Mul", "Neg", "Pow",
    "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip

TOKENS = ("input_ids", "inputs_embeds")
"""The input of a decoder with an entry for every token."""

INT32_MAX = 2**31 - 1
"""End of a Slice that reads to the end of an axis; Slice clamps it."""


def last_token(model: ir.Model) -> PassReport:
    """Slice the inputs of the last part of a decoder to the last token."""
    return cut_last_part(model, PassReport("last_token"), None)


def cut_last_part(model: ir.Model, report: PassReport, start: ir.Value | None) -> PassReport:
    """Slice the inputs of the last part to the tokens from `start` int64 [1] on, or to the last one."""
    logits = next(output for output in model.graph.outputs if output.name == "logits")
    head = logits.producer()
    assert head is not None
    tokenwise, per_token = _tokenwise(model)
    tail = _tail(model, tokenwise, logits)
    if head not in tail or all(node.op_type != "MatMul" for node in tail):
        report.miss(head, "no product with a weight makes the logits")
        return report
    cut: dict[ir.Value, ir.Value] = {}
    for node in tail:
        for place, value in enumerate(node.inputs):
            if value is None or value not in per_token or value.producer() in tail:
                continue
            if value not in cut:
                cut[value] = _slice(value, node, start)
            node.replace_input_with(place, cut[value])
        report.fire(node)
    for value in (output for node in tail for output in node.outputs):
        value.shape = _shortened(value, start)
    return report


def _tokenwise(model: ir.Model) -> tuple[set[ir.Node], set[ir.Value | None]]:
    """Find the nodes that compute each token by itself, and the values [B, S, …].

    Values inside of what torch decomposes have no shape, so these values are found by what they are computed from.
    """
    tokens = next(value for value in model.graph.inputs if value.name in TOKENS).shape[1]  # type: ignore[index]
    tokenwise: set[ir.Node] = set()
    per_token: set[ir.Value | None] = set()
    constant: set[ir.Value | None] = {None}
    for node in model.graph:
        constant |= {value for value in node.inputs if value is not None and value.const_value is not None}
        if constant.issuperset(node.inputs):
            constant.update(node.outputs)
        elif _is_tokenwise(node, constant) and (per_token | constant).issuperset(node.inputs):
            tokenwise.add(node)
            per_token.update(node.outputs)
        else:
            per_token |= {
                output
                for output in node.outputs
                if [axis for axis, size in enumerate(output.shape or ()) if size == tokens] == [1]
            }
    return tokenwise, per_token


def _is_tokenwise(node: ir.Node, constant: set[ir.Value | None]) -> bool:
    """Whether a node whose inputs are [B, S, …] or constant computes each token by itself."""
    match node.domain, node.op_type:
        case "", "MatMul":
            return node.inputs[1] in constant
        case "", "LayerNormalization":
            return node.attributes.get_int("axis", -1) == -1
        case domain, "RMSNorm":
            return domain == DOMAIN
        case domain, op:
            return domain == "" and op in ELEMENTWISE


def _tail(model: ir.Model, tokenwise: set[ir.Node], logits: ir.Value) -> list[ir.Node]:
    """The tokenwise nodes whose results only the logits need, in order."""
    tail: set[ir.Node] = set()
    for node in reversed(model.graph):
        needed = any(
            (output.is_graph_output() and output is not logits) or any(use.node not in tail for use in output.uses())
            for output in node.outputs
        )
        if node in tokenwise and not needed:
            tail.add(node)
    return [node for node in model.graph if node in tail]


def _slice(value: ir.Value, reader: ir.Node, start: ir.Value | None) -> ir.Value:
    """Slice a value to its tokens from `start` on, or to the last one, in front of a node that reads it."""
    assert reader.graph is not None
    emit = NodeBuilder(f"{value.name}/last", origin_of(reader).replaced("sliced by last_token"))
    first = emit.constant([-1]) if start is None else start
    last = emit("Slice", value, first, emit.constant([INT32_MAX]), emit.constant([1]))
    last.type, last.shape = value.type, _shortened(value, start)
    reader.graph.insert_before(reader, emit.nodes)
    return last


def _shortened(value: ir.Value, start: ir.Value | None) -> ir.Shape | None:
    tokens = 1 if start is None else LOGITS_LENGTH
    return value.shape and ir.Shape([value.shape[0], tokens, *list(value.shape)[2:]])
