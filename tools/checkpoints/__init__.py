"""Checkpoints of random weights to measure and to test with."""
