"""Store matrices as integers with scales, by a recipe.

    MatMul(x, W)              becomes   QuantizedMatMul(x, integers, scales[, zero points])
    MatMul(x, Transpose(W))   the same: a head that shares the embedding's weight
    Gather(W, ids)            becomes   QuantizedGather(integers, ids, scales[, zero points])

Requires that the recipe has one format for all parameters that are packed into a matrix, and that a block of at least
16 divides its inputs. A matrix that one node reads otherwise is not quantized for any. What a recipe wants to have
rounded by a calibration text, and no text has reached, is rounded by `mse`.
"""

from dataclasses import replace

import onnx_ir as ir

from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import add_initializer, producer, remove_if_unused, remove_initializer, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.quantized_tensor import QuantizedMatrix, QuantizedTensor
from edgeformer.quantization import Quantization, WeightFormat


def quantize_weights(
    model: ir.Model, recipe: Quantization, calibrated: Calibrated | None = None, *, primitive_gathers: bool = False
) -> PassReport:
    """Quantize every matrix that the recipe has a format for.

    calibrated: those that a text has rounded. plain_lookups: lookups read the very tensor that products read, whatever
    its format; otherwise, as GatherBlockQuantized does, rows of integers that are not cut into blocks.
    """
    report = PassReport("quantize_weights")
    for weight in list(model.graph.initializers.values()):
        matrix = streamed(weight)
        if matrix is None or len(matrix.sizes) != 2 or not weight.uses():
            continue
        readers = [_reader(use.node, use.idx) for use in weight.uses()]
        gathered = any(node is not None and node.op_type == "Gather" for node in readers)
        form = _format(matrix, recipe, gathered and not primitive_gathers)
        if form is None:
            continue
        if not any(readers):
            if any(use.node.op_type == "Gemm" for use in weight.uses()):
                report.miss(next(iter(weight.uses())).node, f"{weight.name} is in a product with a sum, a Gemm")
            continue
        first = next(iter(weight.uses())).node
        columns = first.op_type == "MatMul"
        if None in readers or any((use.node.op_type == "MatMul") != columns for use in weight.uses()):
            report.miss(first, f"{weight.name} is read as what it is by more than products and lookups")
            continue
        inputs = matrix.sizes[0 if columns else 1]
        fitted = form.fitted(inputs)
        if fitted is None:
            report.miss(first, f"{weight.name} has {inputs} inputs, which no block of 16 or more divides")
            continue
        if fitted.rounding == "gptq" and not (calibrated and calibrated.covers(matrix.source.parameters, fitted)):
            fitted = replace(fitted, rounding="mse")
        quantized = QuantizedMatrix(matrix, fitted, columns=columns, calibrated=calibrated)
        for node in readers:
            assert node is not None
            _replace(model, node, quantized, primitive_gathers)
            report.fire(node)
        remove_initializer(model, weight)
    return report


def _format(matrix: StreamedTensor, recipe: Quantization, gathered: bool) -> WeightFormat | None:
    parameters = matrix.source.parameters
    forms = {recipe.format_of(name, gathered=gathered) for name in parameters}
    if len(forms) > 1:
        raise ExportError(
            f"the recipe has different formats for {', '.join(parameters)}, which are stored as one matrix. "
            "Write a pattern that fits all of them."
        )
    return forms.pop()


def _reader(node: ir.Node, place: int) -> ir.Node | None:
    """The product or lookup that reads a weight, if it is one."""
    if node.domain != "":
        return None
    if node.op_type == "Transpose":
        uses = list(node.outputs[0].uses())
        return _reader(uses[0].node, uses[0].idx) if len(uses) == 1 and uses[0].node.op_type == "MatMul" else None
    by_rows = node.op_type == "Gather" and place == 0 and node.attributes.get_int("axis", 0) == 0
    return node if by_rows or (node.op_type == "MatMul" and place == 1) else None


def _replace(model: ir.Model, node: ir.Node, matrix: QuantizedMatrix, primitive_gathers: bool) -> None:
    gathers, form = node.op_type == "Gather", matrix.form
    stored = [_initializer(model, part) for part in matrix.parts(flat=gathers and not primitive_gathers)]
    emit = NodeBuilder(node.name or "")
    attributes = {"bits": form.bits, "block": form.block or 0, "inputs": matrix.inputs, "outputs": matrix.outputs}
    if gathers:
        new = emit("QuantizedGather", stored[0], node.inputs[1], *stored[1:], domain=DOMAIN, **attributes)
    else:
        new = emit("QuantizedMatMul", node.inputs[0], *stored, domain=DOMAIN, **attributes)
    transpose = producer(node.inputs[1], "Transpose")
    replace_node(node, emit, [new])
    remove_if_unused(model, transpose)


def _initializer(model: ir.Model, tensor: QuantizedTensor) -> ir.Value:
    """Register a part once, however many nodes read it."""
    return model.graph.initializers.get(tensor.name or "") or add_initializer(model, tensor)
