"""Products whose inputs are rounded token by token, by MatMulIntegerToFloat.

x / step is rounded, 127 steps being the largest magnitude of a token, and the product is times step. Beside the product
itself this costs passes over all that a prompt's tokens hold, and so there are few:

- what several products read is rounded once: equal nodes are merged;
- QuantizeLinear divides while it rounds: a token is one of its blocks;
- a gate times a product is rounded to the same integers whether or not the product is scaled. So its step comes in
  after the next product, as a factor of the next step: one number a token instead of one a feature;
- QuantizeLinear wants a zero point for every step. They are all the same, and made once for all products of a part of
  the model that read as many tokens.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import NodeBuilder
from edgeformer.export.graph.editing import dtype_of, producer, read_once
from edgeformer.export.lower.ort.names import CONTRIB

SMALLEST, LARGEST = 1e-30, 1e30


class PerTokenProducts:
    """Writes the products of a graph, in order, and keeps in mind what each is without its step."""

    def __init__(self) -> None:
        self._unscaled: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._zeros: dict[tuple[object, ...], ir.Value] = {}

    def __call__(self, emit: NodeBuilder, node: ir.Node) -> ir.Value:
        """The result of a canonical QuantizedMatMul."""
        read, integers, scales = node.inputs[:3]
        dtype = dtype_of(read)
        x, left_out = self._without_step(emit, read)
        largest = emit("ReduceMax", emit("Abs", x), emit.constant([-1]), keepdims=1)
        # A token of zeros stays one.
        largest = emit("Max", largest, emit.constant(SMALLEST, dtype))
        step, zero = emit("Mul", largest, emit.constant(1 / 127, dtype)), emit.constant(128, ir.DataType.UINT8)
        zeros = self._zero_points(emit, node, step, zero)
        steps = emit("QuantizeLinear", x, step, zeros, axis=-1, block_size=node.attributes.get_int("inputs"))
        product = emit("MatMulIntegerToFloat", steps, integers, emit.constant(1, dtype), scales, zero, domain=CONTRIB)
        if left_out is not None:
            step = emit("Mul", step, left_out)
        result = emit("Mul", product, step)
        self._unscaled[result] = product, step
        return result

    def _zero_points(self, emit: NodeBuilder, node: ir.Node, step: ir.Value, zero: ir.Value) -> ir.Value:
        """As many zero points as there are steps, which are one for each token of what is read."""
        read = node.inputs[0]
        # What torch decomposes has values without a shape.
        *tokens, _ = [None, None] if read is None or read.shape is None else read.shape
        # The first word of a name is the part: of a pair, what reads the encoder's states is also cut out of its graph.
        key = (node.name or "").partition(".")[0], *tokens
        zeros = None if None in tokens else self._zeros.get(key)
        if zeros is None:
            # With so large a scale, any number is rounded to its zero point.
            zeros = self._zeros[key] = emit("QuantizeLinear", step, emit.constant(LARGEST, dtype_of(read)), zero)
        return zeros

    def _without_step(self, emit: NodeBuilder, x: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
        """x, or what it is without the step of a product that is a factor of it, and that step."""
        gating = producer(x, "Mul")
        if gating is not None and read_once(gating.outputs[0]):
            for factor, other in (gating.inputs, gating.inputs[::-1]):
                if factor in self._unscaled and read_once(factor):
                    product, step = self._unscaled[factor]
                    return emit("Mul", other, product), step
        return x, None
