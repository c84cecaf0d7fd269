"""Call nodes of onnxruntime through functions of the model, in domain `edgeformer`, for which kernels may stand in.

| function             | its body                                             |
|----------------------|------------------------------------------------------|
| MatMulNBits          | MatMulNBits                                          |
| MatMulNBitsSwiGLU    | MatMulNBits, Split, Sigmoid, Mul, Mul                |
| MatMulNBitsGeGLU     | MatMulNBits, Split, Gelu, Mul                        |
| CachedAttention      | GroupQueryAttention                                  |
| Fp16CachedAttention  | GroupQueryAttention with a float16 cache             |
| Int8CachedAttention  | GroupQueryAttention with an int8 cache               |
| SharedCacheAttention | GroupQueryAttention without new keys                 |
| SelfAttention        | GroupQueryAttention without a past, both directions  |
| CausalSelfAttention  | GroupQueryAttention without a past                   |
| SourceAttention      | MultiHeadAttention                                   |
| AddRMSNorm           | SkipSimplifiedLayerNormalization                     |
| AddLayerNorm         | SkipLayerNormalization                               |
| PostLayerNorm        | SkipLayerNormalization, of which nothing reads a sum |

So a graph computes the same, bit for bit, wherever it is loaded. A program that registers the library of
edgeformer-kernels gets its kernels instead: onnxruntime prefers a kernel to a function of the same name. It requires
float32 and the CPU. Attention and norms are called so where quantized products are, which per_token_functions.py calls
where activations are quantized per token: then the kernels do all of the heavy work, and may have the processor for
themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, QUANTIZED_PRODUCTS
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import same_type
from edgeformer.export.graph.outlining import add_function
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.kernels.kernel_nodes import KERNELS, PRODUCT, KernelFunction, function_of

GATE_COLUMNS = 32
"""The kernel of a gated product takes outputs in multiples of it."""

PRODUCTS = {each.key for each in QUANTIZED_PRODUCTS}
"""Products of graphs that call kernels: where one is, they do all of the heavy work."""


@dataclass(frozen=True)
class Gate:
    """The nodes behind the product of a gate and that of what it gates.

    nodes: all of them, the last one first. gate, up: the two products, before the activation. approximate: the
    attribute of Gelu, None for SiLU.
    """

    nodes: Sequence[ir.Node]
    gate: ir.Value
    up: ir.Value
    approximate: ir.Attr | None


def gate_of(mul: ir.Node | None) -> Gate | None:
    """Return the gate whose last node is this one, if nothing else reads what is in it."""
    if mul is None or mul.op_type != "Mul":
        return None
    for activated, up in (mul.inputs, mul.inputs[::-1]):
        last = None if activated is None or activated.is_graph_output() else activated.producer()
        if last is None or up is None or only_reader(activated) is not mul or only_reader(up) is not mul:
            continue
        gate = next(iter(last.inputs), None)
        if last.op_type == "Gelu" and gate is not None and only_reader(gate) is last:
            return Gate([mul, last], gate, up, last.attributes.get("approximate"))
        sigmoid = next((each for each in last.predecessors() if each.op_type == "Sigmoid"), None)
        if last.op_type == "Mul" and sigmoid is not None and sigmoid.inputs[0] in last.inputs:
            gate = sigmoid.inputs[0]
            assert gate is not None
            if {use.node for use in gate.uses()} == {last, sigmoid} and only_reader(sigmoid.outputs[0]) is last:
                return Gate([mul, last, sigmoid], gate, up, None)
    return None


def only_reader(value: ir.Value | None) -> ir.Node | None:
    """Return the node that alone reads a value; None if there are others, or if it is an output of the graph."""
    uses = () if value is None or value.is_graph_output() else value.uses()
    return next(iter(uses)).node if len(uses) == 1 else None


def _gate_behind(product: ir.Node) -> Gate | None:
    """Return the gate that a product's two halves make, if nothing else reads them."""
    split = only_reader(product.outputs[0])
    if split is None or split.op_type != "Split" or len(split.outputs) != 2:
        return None
    half = product.attributes.get_int("N") // 2
    if half % GATE_COLUMNS or split.outputs[0].shape is None or split.outputs[0].shape[-1] != half:
        return None
    found = gate_of(only_reader(split.outputs[1]))
    if found is None or (found.gate, found.up) != tuple(split.outputs):
        return None
    return replace(found, nodes=[*found.nodes, split])


def gated_function(product: ir.Node, approximate: ir.Attr | None) -> ir.Function:
    """Return the function of a gated product, whose body begins with the product."""
    attributes, emit = dict(PRODUCT.attributes), NodeBuilder("gate")
    gate, up = emit.many("Split", product.outputs[0], outputs=2, axis=-1, num_outputs=2)
    if approximate is None:
        name, activated = "MatMulNBitsSwiGLU", emit("Mul", gate, emit("Sigmoid", gate))
    else:
        attributes["approximate"] = ir.AttributeType.STRING
        reference = ir.RefAttr("approximate", "approximate", ir.AttributeType.STRING)
        name, activated = "MatMulNBitsGeGLU", emit("Gelu", gate, approximate=reference)
    y = emit("Mul", activated, up)
    return function_of(name, product.inputs, [y], [product, *emit.nodes], attributes)


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
    is_quantized = any((node.domain, node.op_type) in PRODUCTS for node in model.graph)
    if not lowering.runs_on.own_kernels or not is_quantized:
        return report

    def record(node: ir.Node, function: ir.Function) -> None:
        add_function(model, function)
        report.fire(node)

    for product in fitting(model, PRODUCT):
        gate = _gate_behind(product)
        record(*(_call_one(PRODUCT, product) if gate is None else _call_gated(model, product, gate)))
    for kernel in KERNELS[1:]:
        call_each(model, kernel, report)
    return report


def call_each(model: ir.Model, kernel: KernelFunction, report: PassReport) -> None:
    """Replace every node that a function fits by a call of it."""
    for node in fitting(model, kernel):
        call, function = _call_one(kernel, node)
        add_function(model, function)
        report.fire(call)


def _call_one(kernel: KernelFunction, node: ir.Node) -> tuple[ir.Node, ir.Function]:
    call, fixed = kernel.call(node)
    give_type(call.outputs[0], call.inputs)
    return call, kernel.definition(fixed)


def give_type(y: ir.Value, inputs: Sequence[ir.Value | None]) -> None:
    """Give the result of a call the type of its first input, if it has none: products before a bias have none.

    onnx knows no ops of onnxruntime, and so infers no type through a function that has one.
    """
    if y.type is None and inputs[0] is not None:
        y.type = inputs[0].type


def fitting(model: ir.Model, kernel: KernelFunction) -> list[ir.Node]:
    """Return the nodes of a graph that a function fits."""
    return [node for node in model.graph if (node.domain, node.op_type) == (CONTRIB, kernel.op) and kernel.fits(node)]
