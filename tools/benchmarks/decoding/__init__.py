"""Benchmarks of decoders: prefill, decode steps, caches, kernels and drafts."""
