"""Products with dynamic per-token activation quantization, by MatMulIntegerToFloat.

Each token of x is divided by its own scale, max |x| / 127, and rounded; the product of integers is multiplied by that
scale. Beside the product this costs passes over all tokens of a prompt, which are kept few:

- an input of several products is rounded once;
- QuantizeLinear divides and rounds at once, with one token per block;
- a gate times a product is rounded to the same integers whether or not the product is multiplied by its scale. So this
  scale is applied behind the next product, in that product's scale: one number per token instead of one per feature.
"""

import onnx_ir as ir

from edgeformer.contract.ops import CONTRIB
from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, producer, read_once

SMALLEST = 1e-30
"""Lower bound of a token's largest magnitude: a token of zeros stays zero instead of becoming 0 / 0."""

LARGEST = 1e30
"""A scale by which any number is rounded to its zero point. QuantizeLinear wants a zero point for every scale."""

PER_TOKEN_OPSET = 21
"""First opset in which QuantizeLinear has blocks."""


class PerTokenProducts:
    """Emits the products of one graph in order, and remembers each product before its scale was applied."""

    def __init__(self) -> None:
        self._unscaled: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._rounded: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def __call__(self, emit: NodeBuilder, node: ir.Node) -> ir.Value:
        """Emit a canonical QuantizedMatMul and return its result."""
        read, integers, weight_scales = node.inputs[:3]
        assert read is not None
        dtype = dtype_of(read)
        x, postponed = self._without_scale(emit, read)
        if x not in self._rounded:
            self._rounded[x] = self._round(emit, x, dtype, node.attributes.get_int("inputs"))
        rounded, scale = self._rounded[x]
        one = emit.constant(1, dtype)
        product = emit("MatMulIntegerToFloat", rounded, integers, one, weight_scales, _middle(emit), domain=CONTRIB)
        if postponed is not None:
            scale = emit("Mul", scale, postponed)
        result = emit("Mul", product, scale)
        self._unscaled[result] = product, scale
        return result

    def _round(self, emit: NodeBuilder, x: ir.Value, dtype: ir.DataType, inputs: int) -> tuple[ir.Value, ir.Value]:
        """Return x as integers, and the scale of each token."""
        largest = emit("ReduceMax", emit("Abs", x), emit.constant([-1]), keepdims=1)
        largest = emit("Max", largest, emit.constant(SMALLEST, dtype))
        scale = emit("Mul", largest, emit.constant(1 / 127, dtype))
        zeros = emit("QuantizeLinear", scale, emit.constant(LARGEST, dtype), _middle(emit))
        return emit("QuantizeLinear", x, scale, zeros, axis=-1, block_size=inputs), scale

    def _without_scale(self, emit: NodeBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """x and None; or, where x is something times a product, x without that product's scale, and the scale."""
        gating = producer(x, "Mul")
        if gating is not None and read_once(gating.outputs[0]):
            for factor, other in (gating.inputs, gating.inputs[::-1]):
                if factor in self._unscaled and read_once(factor):
                    product, scale = self._unscaled[factor]
                    return emit("Mul", other, product), scale
        return x, None


def _middle(emit: NodeBuilder) -> ir.Value:
    """The zero point of all activations."""
    return emit.constant(128, ir.DataType.UINT8)
