"""edgeformer: compact PyTorch transformers as ONNX bundles, run without PyTorch, verified against it.

`edgeformer.export` makes a bundle, `edgeformer.runtime` runs one, `edgeformer.check` tells which clients load one, and
`edgeformer.cli` is the command line of all three. Importing this package imports neither torch nor onnx; the names
below are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeformer.errors import EdgeformerError
    from edgeformer.manifest.manifest import Manifest
    from edgeformer.manifest.quantization import Quantization

__all__ = ["EdgeformerError", "Manifest", "Quantization", "__version__"]

__version__ = "0.1.0"

_LAZY = {
    "EdgeformerError": "edgeformer.errors",
    "Manifest": "edgeformer.manifest.manifest",
    "Quantization": "edgeformer.manifest.quantization",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
