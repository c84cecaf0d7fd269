"""Store matrices as integers with scales, by a quantization config.

    MatMul(x, W)              becomes   QuantizedMatMul(x, integers, scales[, zero points])
    MatMul(x, Transpose(W))   becomes   the same (a head that shares the embedding's weight)
    Gather(W, ids)            becomes   QuantizedGather(integers, ids, scales[, zero points])

Requires that the config has one format for all parameters that are packed into a matrix, and that a block of at least
16 divides its inputs, or nearly does where products alone read it: zeros fill the last block then. A matrix that one
node reads in another way stays as it is for all nodes. A matrix whose format wants GPTQ, and that no calibration text
has reached, is rounded by `mse`.
"""

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN
from edgeformer.errors import ExportError
from edgeformer.export.graph.builder import NodeBuilder, replace_node
from edgeformer.export.graph.editing import add_initializer, producer, remove_if_unused, remove_initializer, streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.quantize.calibrated_weights import Calibrated
from edgeformer.export.quantize.quantized_tensor import QuantizedMatrix
from edgeformer.manifest.quantization import Quantization, WeightFormat


def quantize_weights(
    model: ir.Model,
    quantization: Quantization,
    calibrated: Calibrated | None = None,
    *,
    primitive_gathers: bool = False,
    whole_blocks: bool = False,
) -> PassReport:
    """Quantize every matrix that the quantization config has a format for.

    calibrated: matrices that GPTQ has rounded. primitive_gathers: embedding gathers read the tensor that products read,
    in any format; otherwise they read rows of integers that are not cut into blocks, as GatherBlockQuantized does.
    whole_blocks: no zeros fill a block of any matrix.
    """
    report = PassReport("quantize_weights")
    for weight in list(model.graph.initializers.values()):
        tensor, uses = streamed(weight), list(weight.uses())
        if tensor is None or len(tensor.sizes) != 2 or not uses:
            continue
        readers = [_reader(use.node, use.idx) for use in uses]
        gathered = any(node is not None and node.op_type == "Gather" for node in readers)
        form = _format(tensor, quantization, gathered and not primitive_gathers)
        if form is None:
            continue
        first = uses[0].node
        if not any(readers):
            if any(use.node.op_type == "Gemm" for use in uses):
                report.miss(first, f"{weight.name} is in a product with a sum, a Gemm")
            continue
        columns = first.op_type == "MatMul"
        if None in readers or any((use.node.op_type == "MatMul") != columns for use in uses):
            report.miss(first, f"{weight.name} is also read by other nodes than products and embedding gathers")
            continue
        inputs = tensor.sizes[0 if columns else 1]
        fitted = form.fitted(inputs) if gathered or whole_blocks else form.fitted_to_product(inputs)
        if fitted is None:
            report.miss(first, f"{weight.name} has {inputs} inputs, which no block of 16 or more fits")
            continue
        if fitted.reads_calibration and not (calibrated and calibrated.covers(tensor.source.parameters, fitted)):
            fitted = fitted.without_calibration()
        matrix = QuantizedMatrix(tensor, fitted, columns=columns, calibrated=calibrated)
        for node in readers:
            assert node is not None
            _replace(model, node, matrix, primitive_gathers)
            report.fire(node)
        remove_initializer(model, weight)
    return report


def _format(tensor: StreamedTensor, quantization: Quantization, gathered: bool) -> WeightFormat | None:
    parameters = tensor.source.parameters
    forms = {quantization.format_of(name, gathered=gathered) for name in parameters}
    if len(forms) > 1:
        raise ExportError(
            f"the quantization config has different formats for {', '.join(parameters)}, which are stored as one "
            "matrix. Write a pattern that fits all of them."
        )
    return forms.pop()


def _reader(node: ir.Node, place: int) -> ir.Node | None:
    """The product or embedding gather that reads a weight at input `place` of `node`; None where it is neither."""
    if node.domain != "":
        return None
    if node.op_type == "Transpose":
        uses = list(node.outputs[0].uses())
        return _reader(uses[0].node, uses[0].idx) if len(uses) == 1 and uses[0].node.op_type == "MatMul" else None
    by_rows = node.op_type == "Gather" and place == 0 and node.attributes.get_int("axis", 0) == 0
    return node if by_rows or (node.op_type == "MatMul" and place == 1) else None


def _replace(model: ir.Model, node: ir.Node, matrix: QuantizedMatrix, primitive_gathers: bool) -> None:
    gathers, form = node.op_type == "Gather", matrix.form
    # A part is registered once, however many nodes read it.
    stored = [
        model.graph.initializers.get(part.name or "") or add_initializer(model, part)
        for part in matrix.parts(flat=gathers and not primitive_gathers)
    ]
    emit = NodeBuilder.replacing(node, "quantized by quantize_weights")
    attributes = {
        "bits": form.product_bits,
        "block": form.block or 0,
        "inputs": matrix.inputs,
        "outputs": matrix.outputs,
    }
    if gathers:
        new = emit("QuantizedGather", stored[0], node.inputs[1], *stored[1:], domain=DOMAIN, **attributes)
    else:
        new = emit("QuantizedMatMul", node.inputs[0], *stored, domain=DOMAIN, **attributes)
    transpose = producer(node.inputs[1], "Transpose")
    replace_node(node, emit, [new])
    remove_if_unused(model, transpose)
