"""The kernels of onnxruntime's WebGPU provider, found by trying them."""
