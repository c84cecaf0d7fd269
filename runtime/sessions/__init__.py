"""ONNX Runtime sessions: providers, threads and options, buffers that are bound to graphs, and our own kernels."""
