"""Call nodes of onnxruntime through functions of the model, in domain `edgeformer`, for which kernels may stand in.

| function          | its body                                       |
|-------------------|------------------------------------------------|
| MatMulNBits       | MatMulNBits                                    |
| MatMulNBitsSwiGLU | MatMulNBits, Split, Sigmoid, Mul, Mul          |
| MatMulNBitsGeGLU  | MatMulNBits, Split, Gelu, Mul                  |
| CachedAttention   | GroupQueryAttention                            |
| AddRMSNorm        | SkipSimplifiedLayerNormalization               |

So a graph computes the same, bit for bit, wherever it is loaded. A program that registers the library of
edgeformer-kernels gets its kernels instead: onnxruntime prefers a kernel to a function of the same name. It requires
float32 and the CPU. Attention and norms are called so where products are: then the kernels do all of the heavy work,
and may have the processor for themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import dtype_of, same_type
from edgeformer.export.graph.outlining import add_function
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.contrib import ATTENTION_INPUTS, CONTRIB
from edgeformer.export.lower.options import LoweringOptions

MOST = {4: 256, 8: 65536}
"""The largest block of weights that the kernel takes, by the number of bits."""

GATE_COLUMNS = 32
"""The kernel of a gated product takes outputs in multiples of it."""

OPSET = 20
"""The version of ONNX's ops in the functions' bodies; Gelu is there since 20."""

UNUSED = ("position_ids", "k_scale", "v_scale")
"""Inputs of GroupQueryAttention that the kernel does not have."""


@dataclass(frozen=True)
class KernelFunction:
    """A function whose body begins with one node of onnxruntime.

    inputs, outputs: names in the order of the node's, None for those that it never has; calls leave the last ones out.
    attributes: types of those that calls have. Others are the same in all calls, and stand in the body.
    """

    name: str
    op: str
    inputs: Sequence[str | None]
    outputs: Sequence[str | None]
    attributes: Mapping[str, ir.AttributeType]
    fits: Callable[[ir.Node], bool]

    def call(self, node: ir.Node) -> tuple[ir.Node, Sequence[ir.Attr]]:
        """Put a call in place of a node of onnxruntime; return it, and the attributes that its function's body has."""
        fixed = [each for name, each in node.attributes.items() if name not in self.attributes]
        given = [node.attributes[name] for name in self.attributes]
        inputs = [value for name, value in zip(self.inputs, node.inputs, strict=False) if name is not None]
        old = [value for name, value in zip(self.outputs, node.outputs, strict=True) if name]
        call = ir.Node(
            DOMAIN, self.name, inputs, given,
            num_outputs=len(old), name=node.name, metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        for value, replaced in zip(call.outputs, old, strict=True):
            same_type(value, replaced)
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], [call], old, call.outputs)
        return call, fixed

    def body(self, fixed: Sequence[ir.Attr]) -> ir.Node:
        """Return the node of the function's body. fixed: attributes that are the same in all calls."""
        inputs = [None if name is None else ir.Value(name=name) for name in self.inputs]
        attributes = [*(ir.RefAttr(name, name, kind) for name, kind in self.attributes.items()), *fixed]
        node = ir.Node(CONTRIB, self.op, inputs, attributes, num_outputs=len(self.outputs), name=self.op)
        for value, name in zip(node.outputs, self.outputs, strict=True):
            value.name = name or ""
        return node

    def function(self, fixed: Sequence[ir.Attr]) -> ir.Function:
        """Return the function."""
        node = self.body(fixed)
        return _function(
            self.name, node.inputs, [value for value in node.outputs if value.name], [node], self.attributes
        )


def _function(
    name: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    attributes: Mapping[str, ir.AttributeType],
) -> ir.Function:
    formal = [value for value in inputs if value is not None]
    opsets = {"": OPSET, CONTRIB: 1} if any(node.domain == "" for node in nodes) else {CONTRIB: 1}
    graph = ir.Graph(formal, outputs, nodes=nodes, opset_imports=opsets, name=name)
    declared = [ir.Attr(each, kind, None) for each, kind in attributes.items()]
    return ir.Function(DOMAIN, name, graph=graph, attributes=declared)


def restore_attention(node: onnx.NodeProto) -> None:
    """Turn a call of CachedAttention in a written graph into the node of onnxruntime that is the function's body."""
    given = iter(node.input)
    names = ["" if name is None else next(given, "") for name in ATTENTION.inputs]
    while not names[-1]:
        names.pop()
    del node.input[:]
    node.input.extend(names)
    node.domain, node.op_type = CONTRIB, ATTENTION.op


def _product_fits(node: ir.Node) -> bool:
    bits, block = node.attributes.get_int("bits"), node.attributes.get_int("block_size")
    is_float = dtype_of(node.inputs[0]) == ir.DataType.FLOAT
    return is_float and len(node.inputs) <= len(PRODUCT.inputs) and block <= MOST.get(bits, 0)


def _attention_fits(node: ir.Node) -> bool:
    inputs = dict(zip(ATTENTION_INPUTS, node.inputs, strict=False))
    return (
        inputs["past_key"] is not None
        and dtype_of(inputs["past_key"]) == ir.DataType.FLOAT
        and len(node.outputs) == len(ATTENTION.outputs)
        and not any(inputs.get(name) for name in UNUSED)
        and node.attributes.keys() == ATTENTION.attributes.keys()
    )


def _norm_fits(node: ir.Node) -> bool:
    # onnxruntime infers types of all outputs that a function has, so a call must have them.
    return (
        dtype_of(node.inputs[2]) == ir.DataType.FLOAT
        and len(node.inputs) == len(NORM.inputs)
        and node.attributes.keys() == NORM.attributes.keys()
        and bool(node.outputs[3].name)
    )


_INT, _FLOAT, _STRING = ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING

PRODUCT = KernelFunction(
    "MatMulNBits",
    op="MatMulNBits",
    inputs=("A", "B", "scales", "zero_points"),
    outputs=("Y",),
    attributes=dict.fromkeys(("K", "N", "bits", "block_size"), _INT),
    fits=_product_fits,
)

ATTENTION = KernelFunction(
    "CachedAttention",
    op="GroupQueryAttention",
    inputs=[None if name in UNUSED else name for name in ATTENTION_INPUTS],
    outputs=("output", "present_key", "present_value"),
    attributes=dict.fromkeys(
        ("num_heads", "kv_num_heads", "local_window_size", "do_rotary", "rotary_interleaved"), _INT
    )
    | dict.fromkeys(("scale", "softcap"), _FLOAT),
    fits=_attention_fits,
)

NORM = KernelFunction(
    "AddRMSNorm",
    op="SkipSimplifiedLayerNormalization",
    inputs=("input", "skip", "gamma"),
    outputs=("output", None, None, "input_skip_bias_sum"),
    attributes={"epsilon": _FLOAT},
    fits=_norm_fits,
)


@dataclass(frozen=True)
class Gate:
    """The nodes behind a product whose outputs are a gate and what it gates.

    nodes: all of them, the last one first. approximate: the attribute of Gelu, None for SiLU.
    """

    nodes: Sequence[ir.Node]
    approximate: ir.Attr | None


def _gate_behind(product: ir.Node) -> Gate | None:
    """Return the gate that a product's two halves make, if nothing else reads them."""
    split = _only_reader(product.outputs[0])
    if split is None or split.op_type != "Split" or len(split.outputs) != 2:
        return None
    half = product.attributes.get_int("N") // 2
    if half % GATE_COLUMNS or split.outputs[0].shape is None or split.outputs[0].shape[-1] != half:
        return None
    gate, up = split.outputs
    mul = _only_reader(up)
    if mul is None or mul.op_type != "Mul":
        return None
    activated = next(value for value in mul.inputs if value is not up)
    last = None if activated is None or activated.is_graph_output() else activated.producer()
    if last is None or _only_reader(activated) is not mul:
        return None
    if last.op_type == "Gelu" and last.inputs[0] is gate and _only_reader(gate) is last:
        return Gate([mul, last, split], last.attributes.get("approximate"))
    sigmoid = next((each.producer() for each in last.inputs if each is not None and each is not gate), None)
    if last.op_type == "Mul" and sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is gate:
        readers = {use.node for use in gate.uses()}
        if readers == {last, sigmoid} and _only_reader(sigmoid.outputs[0]) is last:
            return Gate([mul, last, sigmoid, split], None)
    return None


def _only_reader(value: ir.Value | None) -> ir.Node | None:
    uses = () if value is None or value.is_graph_output() else value.uses()
    return next(iter(uses)).node if len(uses) == 1 else None


def gated_function(product: ir.Node, approximate: ir.Attr | None) -> ir.Function:
    """Return the function of a gated product, whose body begins with the product."""
    attributes, emit = dict(PRODUCT.attributes), NodeBuilder("gate")
    gate, up = emit.many("Split", product.outputs[0], outputs=2, axis=-1, num_outputs=2)
    if approximate is None:
        name, activated = "MatMulNBitsSwiGLU", emit("Mul", gate, emit("Sigmoid", gate))
    else:
        attributes["approximate"] = _STRING
        reference = ir.RefAttr("approximate", "approximate", _STRING)
        name, activated = "MatMulNBitsGeGLU", emit("Gelu", gate, approximate=reference)
    y = emit("Mul", activated, up)
    return _function(name, product.inputs, [y], [product, *emit.nodes], attributes)


def _call_gated(model: ir.Model, product: ir.Node, gate: Gate) -> tuple[ir.Node, ir.Function]:
    """Put one call in place of a product and its gate; return it, and the function that it calls."""
    call, fixed = PRODUCT.call(product)
    function = gated_function(PRODUCT.body(fixed), gate.approximate)
    call.op_type = function.name
    if gate.approximate is not None:
        call.attributes.add(gate.approximate)
    output = gate.nodes[0].outputs[0]
    output.replace_all_uses_with(call.outputs[0])
    for node in gate.nodes:
        model.graph.remove(node, safe=True)
    same_type(call.outputs[0], output)
    return call, function


def call_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every node that a kernel can compute by a call of its function."""
    report = PassReport("kernels")
    products = _fitting(model, PRODUCT)
    if lowering.provider != "cpu" or not products:
        return report

    def record(node: ir.Node, function: ir.Function) -> None:
        add_function(model, function)
        report.fire(node)

    for product in products:
        gate = _gate_behind(product)
        record(*(_call_one(PRODUCT, product) if gate is None else _call_gated(model, product, gate)))
    for kernel in (ATTENTION, NORM):
        for node in _fitting(model, kernel):
            record(*_call_one(kernel, node))
    return report


def _call_one(kernel: KernelFunction, node: ir.Node) -> tuple[ir.Node, ir.Function]:
    call, fixed = kernel.call(node)
    return call, kernel.function(fixed)


def _fitting(model: ir.Model, kernel: KernelFunction) -> list[ir.Node]:
    return [node for node in model.graph if (node.domain, node.op_type) == (CONTRIB, kernel.op) and kernel.fits(node)]
