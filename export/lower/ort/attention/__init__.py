"""Rules that lower kinds of attention to kernels of onnxruntime."""
