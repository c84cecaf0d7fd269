"""Call nodes of onnxruntime through functions of the model, in domain `edgeformer`, for which kernels may stand in.

| function             | its body                                             |
|----------------------|------------------------------------------------------|
| MatMulNBits          | MatMulNBits                                          |
| MatMulNBitsSwiGLU    | MatMulNBits, Split, Sigmoid, Mul, Mul                |
| MatMulNBitsGeGLU     | MatMulNBits, Split, Gelu, Mul                        |
| MatMulNBitsBias      | MatMulNBits, Add                                     |
| MatMulNBitsBiasGelu  | MatMulNBits, Add, Gelu                               |
| MatMulNBitsFeedFor…  | the last of these, and the one before it behind it   |
| CachedAttention      | GroupQueryAttention                                  |
| Fp16CachedAttention  | GroupQueryAttention with a float16 cache             |
| Int8CachedAttention  | GroupQueryAttention with an int8 cache               |
| SharedCacheAttention | GroupQueryAttention without new keys                 |
| SelfAttention        | GroupQueryAttention without a past, both directions  |
| CausalSelfAttention  | GroupQueryAttention without a past                   |
| SourceAttention      | MultiHeadAttention                                   |
| AddRMSNorm           | SkipSimplifiedLayerNormalization                     |
| AddLayerNorm         | SkipLayerNormalization                               |
| SplitRMSNorm         | Split, and SimplifiedLayerNormalization of its heads |
| PostLayerNorm        | SkipLayerNormalization, of which nothing reads a sum |

So a graph computes the same, bit for bit, wherever it is loaded. A program that registers the library of
edgeformer-kernels gets its kernels instead: onnxruntime prefers a kernel to a function of the same name. It requires
float32 and the CPU. Attention and norms are called so where quantized products are, which per_token_functions.py calls
where activations are quantized per token: then the kernels do all of the heavy work, and may have the processor for
themselves.
"""

from collections.abc import Sequence

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, QUANTIZED_PRODUCTS
from edgeformer.export.graph.editing import same_type
from edgeformer.export.graph.outlining import add_function
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.kernels.epilogues import Epilogue, epilogue_of, function_with
from edgeformer.export.lower.ort.kernels.feed_forwards import call_feed_forward, feed_forwards
from edgeformer.export.lower.ort.kernels.kernel_nodes import KERNELS, PRODUCT, KernelFunction
from edgeformer.export.lower.ort.kernels.split_norms import call_split_norm, split_norms

PRODUCTS = {each.key for each in QUANTIZED_PRODUCTS}
"""Products of graphs that call kernels: where one is, they do all of the heavy work."""


def _call_with(model: ir.Model, product: ir.Node, epilogue: Epilogue) -> tuple[ir.Node, ir.Function]:
    """Put one call in place of a product and its epilogue; return it, and the function that it calls."""
    call, fixed = PRODUCT.call(product)
    body = PRODUCT.body(fixed)
    function = function_with(body, epilogue)
    call.op_type = function.name
    if epilogue.approximate is not None:
        call.attributes.add(epilogue.approximate)
    if epilogue.bias is not None:
        call.resize_inputs(len(body.inputs) + 1)
        call.replace_input_with(len(body.inputs), epilogue.bias)
    (last, *others), (y,) = epilogue.nodes, call.outputs
    same_type(y, last.outputs[0])
    ir.convenience.replace_nodes_and_values(model.graph, last, [last], [], last.outputs, [y])
    for node in others:
        model.graph.remove(node, safe=True)
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
        epilogue = epilogue_of(product)
        record(*(_call_one(PRODUCT, product) if epilogue is None else _call_with(model, product, epilogue)))
    for products in feed_forwards(model):
        add_function(model, call_feed_forward(model, products))
    for split in split_norms(model):
        add_function(model, call_split_norm(model, split))
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
