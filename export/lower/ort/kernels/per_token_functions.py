"""Call products that quantize activations per token through functions of the model, for which kernels may stand in.

    MatMulIntegerToFloat, with what rounds its input and scales its result     becomes   PerTokenMatMul[Bias]
    activation(x · up) · down                                                  becomes   PerTokenFeedForward…
    (activation(x · gate) × (x · up)) · down                                   becomes   PerTokenGatedFeedForward…

A bias is part of a function if there is one, and the name of a feed-forward says which activation it has. The body is
what was emitted for it (per_token_products.py). Requires float32, intermediate results that nothing else reads, and of
a feed-forward that all of its products have biases or none has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB, INTEGER_PRODUCT, ROUNDING
from edgeformer.export.graph.editing import dim, dtype_of, producer, read_once, streamed
from edgeformer.export.graph.outlining import outline
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.per_token_products import PER_TOKEN_OPSET


@dataclass(frozen=True)
class PerTokenProduct:
    """A product that was found in the graph.

    node: that multiplies. rounding: the node that rounds x. result: with its scale, if it has one, and with the bias.
    """

    node: ir.Node
    rounding: ir.Node
    integers: ir.Value
    scales: ir.Value
    result: ir.Value
    bias: ir.Value | None

    @property
    def x(self) -> ir.Value:
        """The rounding reads this value."""
        (x, *_) = self.rounding.inputs
        assert x is not None
        return x

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return dim(self.scales, 0)

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return dim(self.integers, 0)


@dataclass(frozen=True)
class FeedForward:
    """Products whose results nothing else reads, and the activation between them."""

    gate: PerTokenProduct | None
    up: PerTokenProduct
    activation: str
    down: PerTokenProduct

    @property
    def products(self) -> dict[str, PerTokenProduct]:
        """The products by name, in the order of the function's inputs."""
        gate = {} if self.gate is None else {"gate": self.gate}
        return gate | {"up": self.up, "down": self.down}


def call_per_token_kernels(model: ir.Model, lowering: LoweringOptions) -> PassReport:
    """Replace every feed-forward and every other product that a kernel can compute by a call of a function."""
    report = PassReport("per-token kernels")
    if not lowering.runs_on.own_kernels:
        return report
    opsets = {"": max(model.opset_imports[""], PER_TOKEN_OPSET), CONTRIB: 1}
    products = list(_products(model))
    by_result = {product.result: product for product in products}
    forwards = [found for product in products if (found := _feed_forward(product, by_result)) is not None]
    within = {id(each) for forward in forwards for each in forward.products.values()}
    for forward in forwards:
        report.fire(forward.down.node)
        _call_feed_forward(model, forward, opsets)
    for product in products:
        if id(product) not in within:
            report.fire(product.node)
            _call_product(model, product, opsets)
    return report


def _products(model: ir.Model) -> Iterator[PerTokenProduct]:
    """Every product of float32 whose result only its scale and bias read, in order."""
    for node in model.graph:
        if (node.domain, node.op_type) != INTEGER_PRODUCT.key:
            continue
        inputs = INTEGER_PRODUCT.named(node.inputs)
        rounding, integers, scales = producer(inputs["A"], ROUNDING.name), inputs["B"], inputs["b_scale"]
        if rounding is None or integers is None or scales is None or dtype_of(scales) != ir.DataType.FLOAT:
            continue
        result = _scaled(node.outputs[0], rounding) or node.outputs[0]
        bias, with_bias = _bias_of(result)
        yield PerTokenProduct(node, rounding, integers, scales, with_bias, bias)


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The only node that reads a value, if it is such a node."""
    if not read_once(value):
        return None
    (use,) = value.uses()
    return use.node if (use.node.domain, use.node.op_type) == ("", op_type) else None


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    first, second = node.inputs
    return second if first is value else first


def _scaled(product: ir.Value, rounding: ir.Node) -> ir.Value | None:
    """The product times the scale of its input; None for one that is multiplied by a gate first."""
    multiplied = _only_reader(product, "Mul")
    if multiplied is None:
        return None
    factor = _other(multiplied, product)
    both = producer(factor, "Mul")
    of_token = ROUNDING.named(rounding.inputs)["y_scale"]
    is_scale = factor is of_token or (both is not None and of_token in both.inputs)
    return multiplied.outputs[0] if is_scale else None


def _bias_of(result: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    """The bias of a result, None without one; and the result with it."""
    added = _only_reader(result, "Add")
    bias = None if added is None else _other(added, result)
    if added is None or bias is None or streamed(bias) is None or len(bias.shape or ()) != 1:
        return None, result
    return bias, added.outputs[0]


ByResult = Mapping[ir.Value, PerTokenProduct]


def _feed_forward(down: PerTokenProduct, by_result: ByResult) -> FeedForward | None:
    """The feed-forward whose last product is `down`; None if what it reads is no activation of products."""
    gating = producer(down.x, "Mul")
    found = None
    if gating is not None:
        for inner, other in (gating.inputs, gating.inputs[::-1]):
            up, activated = by_result.get(other), _activated(inner, by_result)  # type: ignore[arg-type]
            if up is not None and activated is not None and activated[1].x is up.x:
                found = FeedForward(activated[1], up, activated[0], down)
    elif (activated := _activated(down.x, by_result)) is not None:
        found = FeedForward(None, activated[1], activated[0], down)
    if found is None or len({product.bias is None for product in found.products.values()}) > 1:
        return None
    return found


def _activated(value: ir.Value | None, by_result: ByResult) -> tuple[str, PerTokenProduct] | None:
    """The activation that computes a value from a product, and the product, which nothing else reads."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "":
        return None
    read = node.inputs[0]
    if node.op_type == "Mul":  # x · sigmoid(x)
        sigmoid = producer(node.inputs[0], "Sigmoid") or producer(node.inputs[1], "Sigmoid")
        if sigmoid is None or sigmoid.inputs[0] not in node.inputs or not read_once(sigmoid.outputs[0]):
            return None
        read = sigmoid.inputs[0]
        name, uses = "Silu", 2
    else:
        name, uses = ACTIVATIONS.get((node.op_type, node.attributes.get_string("approximate", "none")), ""), 1
    product = by_result.get(read)  # type: ignore[arg-type]
    if not name or product is None or len(product.result.uses()) != uses or product.result.is_graph_output():
        return None
    return name, product


ACTIVATIONS = {("Relu", "none"): "Relu", ("Gelu", "none"): "Gelu", ("Gelu", "tanh"): "GeluTanh"}
"""Names of activations, by op and attribute."""


def _call_product(model: ir.Model, product: PerTokenProduct, opsets: Mapping[str, int]) -> None:
    inputs = {"A": product.x, "B": product.integers, "scales": product.scales}
    if product.bias is not None:
        inputs["bias"] = product.bias
    sizes = {"K": product.inputs, "N": product.outputs}
    name = f"PerTokenMatMul{'' if product.bias is None else 'Bias'}"
    outline(model, name, inputs, product.result, sizes, {product.rounding: {"block_size": "K"}}, opsets)


def _call_feed_forward(model: ir.Model, forward: FeedForward, opsets: Mapping[str, int]) -> None:
    up, down, products = forward.up, forward.down, forward.products
    inputs = {"A": up.x}
    for name, product in products.items():
        inputs |= {name: product.integers, f"{name}_scales": product.scales}
    inputs |= {f"{name}_bias": product.bias for name, product in products.items() if product.bias is not None}
    sizes = {"K": up.inputs, "F": up.outputs, "N": down.outputs}
    refs = {product.rounding: {"block_size": "K"} for product in products.values()}
    refs[down.rounding] = {"block_size": "F"}
    gated, bias = "Gated" if forward.gate else "", "" if up.bias is None else "Bias"
    outline(model, f"PerToken{gated}FeedForward{forward.activation}{bias}", inputs, down.result, sizes, refs, opsets)
