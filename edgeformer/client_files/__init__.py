"""The files that clients and people read beside the graphs of a bundle. They need no torch, onnx or onnxruntime."""
