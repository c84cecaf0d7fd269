"""Run a model in PyTorch: in float64 as the reference, and in the graph's own precision as the measure of rounding."""
