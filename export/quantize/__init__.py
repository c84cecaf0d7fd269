"""Quantized weights: rounding, packing, and tensors that quantize themselves when the bundle is written."""
