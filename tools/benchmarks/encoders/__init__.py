"""Benchmarks of encoders and encoder-decoders."""
