"""edgeformer: compact PyTorch transformers as ONNX bundles, run without PyTorch, verified against it.

`edgeformer.export` makes a bundle, `edgeformer.runtime` runs one, `edgeformer.cli` is both from a terminal.
Importing this package imports neither torch nor onnx.
"""

__version__ = "0.1.0"
