"""Functions of a model around nodes of onnxruntime, for which kernels of edgeformer may stand in."""
