"""Compute what only the logits need for the last tokens alone, from where an optional input says.

    attention [B, S, H·D] → MatMul → + x → RMSNorm → … → MatMul → logits [B, S, V]

becomes

    attention → Slice(logits_start:), x → Slice(logits_start:) → MatMul → + → RMSNorm → … → MatMul → logits [B, L, V]

After the last attention no token reads another, so the head, the last feed-forward and the projection before it need
only the tokens whose logits are read. Requires ops that compute each token by itself, and that the product that makes
the logits is one of them.

`logits_start` int64 [1] is an initializer: 0, so that the logits are those of all tokens. The runtime makes it an
input, too, in the graph that it opens (`optional_inputs`).
"""

import numpy as np
import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.contract.tensors import LOGITS_LENGTH, LOGITS_START, REQUEST_LENGTH
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import origin_of

ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Gelu", "Greater", "Identity", "Less", "Max", "Min", "Mul",
    "Neg", "Pow", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip

TOKENS = ("input_ids", "inputs_embeds")
"""Inputs of decoders with an entry for every token."""

INT32_MAX = 2**31 - 1
"""End of a Slice that reads to the end of an axis; Slice clamps it."""


def optional_logits(model: ir.Model) -> PassReport:
    """Slice the inputs of the last part of a decoder to the tokens from the input `logits_start` on.

    The input is required until `make_optional`, which comes behind all passes: they would take an initializer for a
    constant, and join it with others of its value.
    """
    report = PassReport("optional_logits")
    outputs = {output.name: output for output in model.graph.outputs}
    logits = outputs.get("logits")
    is_decoder = any(name and name.startswith("present") for name in outputs)
    if logits is None or logits.shape is None or not is_decoder:
        return report
    start = ir.Value(name=LOGITS_START, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    _cut_last_part(model, logits, start, report)
    if report.changed:
        model.graph.inputs.append(start)
    return report


def make_optional(model: ir.Model, context_length: int) -> None:
    """Make the inputs that a client need not give initializers.

    `logits_start` is 0: the logits are those of all tokens. `request_length` is the context length: all requests turn
    by the factors of long ones.
    """
    defaults = {LOGITS_START: 0, REQUEST_LENGTH: context_length}
    for value in list(model.graph.inputs):
        if value.name in defaults:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(np.array([defaults[value.name]], np.int64), name=value.name)
            value.shape = ir.Shape([1])
            model.graph.register_initializer(value)


def _cut_last_part(model: ir.Model, logits: ir.Value, start: ir.Value, report: PassReport) -> None:
    """Slice the inputs of the last part to the tokens from `start` int64 [1] on."""
    head = logits.producer()
    assert head is not None
    tokenwise, per_token = _tokenwise(model)
    tail = _tail(model, tokenwise, logits)
    if head not in tail or all(node.op_type != "MatMul" for node in tail):
        report.miss(head, "no product with a weight makes the logits")
        return
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
        value.shape = _shortened(value)


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


def _slice(value: ir.Value, reader: ir.Node, start: ir.Value) -> ir.Value:
    """Slice a value to its tokens from `start` on, in front of a node that reads it."""
    assert reader.graph is not None
    emit = NodeBuilder(f"{value.name}/last", origin_of(reader).replaced("sliced by optional_logits"))
    last = emit("Slice", value, start, emit.constant([INT32_MAX]), emit.constant([1]))
    last.type, last.shape = value.type, _shortened(value)
    reader.graph.insert_before(reader, emit.nodes)
    return last


def _shortened(value: ir.Value) -> ir.Shape | None:
    return value.shape and ir.Shape([value.shape[0], LOGITS_LENGTH, *list(value.shape)[2:]])
