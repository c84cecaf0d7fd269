"""Store weights as bfloat16 and compute with them in float32.

    W float32       becomes       W bfloat16 → Cast(float32)

Runtimes fold the cast when they load the graph, so that it costs no time in a run; the weights in memory are float32.
Runs after the rules of an op set, which expect weights where the casts now are. Tables that the module computed, such
as those of rotary embeddings, are not weights and keep full precision.
"""

from collections.abc import Container

import onnx_ir as ir

from edgeformer.export.graph.builder import store_narrower
from edgeformer.export.graph.editing import streamed
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.tensors import StreamedTensor


def bf16_weights(model: ir.Model, parameters: Container[str]) -> PassReport:
    """Store every float32 weight that is made of these parameters as bfloat16."""
    report = PassReport("bf16_weights")
    for weight in list(model.graph.initializers.values()):
        tensor = streamed(weight)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.source.parameters[0] not in parameters:
            continue
        half = StreamedTensor(tensor.name or "", ir.DataType.BFLOAT16, tensor.shape, tensor.source, tensor.values)
        report.fire(store_narrower(model, weight, half))
    return report
