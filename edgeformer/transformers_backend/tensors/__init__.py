"""Tensors of a checkpoint by the names that modules of transformers have."""
