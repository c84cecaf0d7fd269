"""Export models to bundles and verify them. Needs torch and onnx (extra `export`) and, to verify, onnxruntime."""

from edgeformer.errors import require

for _module in ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors"):
    require(_module, "export")

from edgeformer.export.adapters.own_module import export_module, verify_module  # noqa: E402 - after the message above
from edgeformer.export.parity import Report, verify  # noqa: E402
from edgeformer.export.pipeline import ExportResult, export_model  # noqa: E402

__all__ = ["ExportResult", "Report", "export_model", "export_module", "verify", "verify_module"]
