"""Store scales of quantized matrices as float16 and compute with them in float32.

    W.scales float32      becomes      W.scales float16 → Cast(float32)

Only scales whose format says so: their integers were rounded to steps of the float16 number. No kernel for float32
activations takes float16 scales, and runtimes fold the cast when they load the graph, so that kernels find float32
constants. Runs after the rules of the op set, which expect scales where the casts now are.
"""

import onnx_ir as ir

from edgeformer.export.graph.builder import store_narrower
from edgeformer.export.graph.editing import streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.quantize.quantized_tensor import QuantizedPart


def half_scales(model: ir.Model) -> PassReport:
    """Store all float32 scales of formats with float16 scales in float16."""
    report = PassReport("half_scales")
    for scales in list(model.graph.initializers.values()):
        tensor = streamed(scales)
        if not isinstance(tensor, QuantizedPart) or tensor.part != "scales" or tensor.dtype != ir.DataType.FLOAT:
            continue
        if tensor.matrix.form.scales == "fp16":
            report.fire(store_narrower(model, scales, tensor.half()))
    return report
