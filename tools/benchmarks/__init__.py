"""Benchmarks of bundles: speed, memory and quantization loss, beside PyTorch and beside other runtimes."""
