"""Calibration: run a text through the model, and choose integers, scales and smoothing factors by its inputs."""
