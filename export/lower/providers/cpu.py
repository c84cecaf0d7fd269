"""The limits of the kernels of onnxruntime's CPU provider (1.31)."""

import onnx_ir as ir

from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.graph.editing import dtype_of
from edgeformer.export.lower.providers.rules import ProviderRules
from edgeformer.manifest.quantization import WeightFormat


class CpuRules(ProviderRules):
    """Kernels of the CPU, many of which are for float32 alone."""

    float32_alone = True
    scales_queries = True
    rotates = True
    fills_blocks = True
    fuses_products = True

    def cross_attention(self, node: ir.Node) -> str | None:
        """Judge an attention to a source."""
        if dtype_of(canonical_inputs(node).query) != ir.DataType.FLOAT:
            return "there is no float16 CPU kernel"
        return None

    def experts(self, node: ir.Node, form: WeightFormat | None) -> str | None:
        """Judge the types of a mixture of experts."""
        return None if dtype_of(canonical_inputs(node).x) == ir.DataType.FLOAT else "the CPU kernel takes float32 only"
