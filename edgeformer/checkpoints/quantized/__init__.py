"""Checkpoints whose weights are quantized already, read as the weights that they mean.

    X.qweight, X.qzeros, X.scales, …   →   X.weight, float32 [out, in] when it is indexed

Each format is a file: which tensors a matrix is stored in, and what their numbers mean. Where a bundle asks for blocks
that these integers can fill, they are copied (`blocks`), and nothing is rounded a second time.
"""
