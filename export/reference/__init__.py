"""Run a model in PyTorch: in float64 for the truth, and in the graph's own precision for its rounding."""
