"""edgeformer: compact PyTorch transformers as ONNX bundles, run without PyTorch, verified against it.

`edgeformer.export` makes a bundle, `edgeformer.runtime` runs one, and `edgeformer.cli` is the command line of both.
Importing this package imports neither torch nor onnx.
"""

__version__ = "0.1.0"
