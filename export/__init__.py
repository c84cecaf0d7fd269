"""Export models to bundles and verify them. Needs torch and onnx (extra `export`) and, to verify, onnxruntime.

Names are imported when they are asked for: options and plans cost no import of torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from edgeformer.errors import EdgeformerError
from edgeformer.export.api import export_model, export_module, require_packages
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import Quantization, QuantizationOverrides
from edgeformer.options.export import ExportOptions

if TYPE_CHECKING:
    from edgeformer.export.parity import Report, verify, verify_module
    from edgeformer.export.pipeline import ExportResult

__all__ = [
    "EdgeformerError",
    "ExportOptions",
    "ExportResult",
    "Manifest",
    "Quantization",
    "QuantizationOverrides",
    "Report",
    "export_model",
    "export_module",
    "verify",
    "verify_module",
]

_NEED_TORCH = {
    "ExportResult": "edgeformer.export.pipeline",
    "Report": "edgeformer.export.parity",
    "verify": "edgeformer.export.parity",
    "verify_module": "edgeformer.export.parity",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for (PEP 562)."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages()
    return getattr(importlib.import_module(_NEED_TORCH[name]), name)
