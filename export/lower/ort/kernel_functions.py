"""Call nodes of onnxruntime through functions of the model, in domain `edgeformer`, for which kernels may stand in.

| function        | its body, of com.microsoft |
|-----------------|----------------------------|
| MatMulNBits     | MatMulNBits                |
| CachedAttention | GroupQueryAttention        |

So a graph computes the same, bit for bit, wherever it is loaded. A program that registers the library of
edgeformer-kernels gets its kernels instead: onnxruntime prefers a kernel to a function of the same name. It requires
float32 and the CPU. Attention is called so where products are: then the kernels do all of the heavy work, and may have
the processor for themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from edgeformer.export.graph.canonical import DOMAIN, VERSION
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.contrib import ATTENTION_INPUTS, CONTRIB
from edgeformer.export.lower.options import LoweringOptions

MOST = {4: 256, 8: 65536}
"""The largest block of weights that the kernel takes, by the number of bits."""

UNUSED = ("position_ids", "k_scale", "v_scale")
"""Inputs of GroupQueryAttention that the kernel does not have."""


@dataclass(frozen=True)
class KernelFunction:
    """A function of one node of onnxruntime.

    inputs: formal inputs in the order of the node's, None for those that it never has; calls leave the last ones out.
    attributes: types of those that calls have. Others are the same in all calls, and stand in the body.
    """

    name: str
    op: str
    inputs: Sequence[str | None]
    outputs: Sequence[str]
    attributes: Mapping[str, ir.AttributeType]
    fits: Callable[[ir.Node], bool]

    def call(self, node: ir.Node) -> ir.Function:
        """Turn a node of onnxruntime into a call; return the function that it calls."""
        fixed = [each for name, each in node.attributes.items() if name not in self.attributes]
        for each in fixed:
            del node.attributes[each.name]
        assert node.attributes.keys() == self.attributes.keys(), f"{node.name} leaves attributes to their defaults"
        given = [value for name, value in zip(self.inputs, node.inputs, strict=False) if name is not None]
        node.resize_inputs(len(given))
        for index, value in enumerate(given):
            node.replace_input_with(index, value)
        node.domain, node.op_type = DOMAIN, self.name
        return self.function(fixed)

    def function(self, fixed: Sequence[ir.Attr]) -> ir.Function:
        """Return the function. fixed: attributes that are the same in all calls."""
        inputs = [None if name is None else ir.Value(name=name) for name in self.inputs]
        references = [ir.RefAttr(name, name, kind) for name, kind in self.attributes.items()]
        body = ir.Node(CONTRIB, self.op, inputs, [*references, *fixed], num_outputs=len(self.outputs), name=self.op)
        for value, name in zip(body.outputs, self.outputs, strict=True):
            value.name = name
        formal = [value for value in inputs if value is not None]
        graph = ir.Graph(formal, body.outputs, nodes=[body], opset_imports={CONTRIB: 1}, name=self.name)
        attributes = [ir.Attr(name, kind, None) for name, kind in self.attributes.items()]
        return ir.Function(DOMAIN, self.name, graph=graph, attributes=attributes)


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


_INT, _FLOAT = ir.AttributeType.INT, ir.AttributeType.FLOAT

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


def call_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every node that a kernel can compute by a call of its function."""
    report = PassReport("kernels")
    if lowering.provider != "cpu":
        return report
    products = _fitting(model, PRODUCT)
    calls = [(PRODUCT, node) for node in products]
    calls += [(ATTENTION, node) for node in _fitting(model, ATTENTION)] if products else []
    bodies: dict[str, bytes] = {}
    for kernel, node in calls:
        function = kernel.call(node)
        body = ir.serde.serialize_function(function).SerializeToString(deterministic=True)
        assert bodies.setdefault(kernel.name, body) == body, "calls with different bodies need different functions"
        model.functions[function.identifier()] = function
        model.opset_imports[DOMAIN] = VERSION
        report.fire(node)
    return report


def _fitting(model: ir.Model, kernel: KernelFunction) -> list[ir.Node]:
    return [node for node in model.graph if (node.domain, node.op_type) == (CONTRIB, kernel.op) and kernel.fits(node)]
