"""Checkpoints: where a model is found, its files, and its tensors one by one."""
