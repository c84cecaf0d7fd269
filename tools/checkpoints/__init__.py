"""Checkpoints of random weights for measurements and tests."""
