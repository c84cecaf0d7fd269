"""Recordings: files to samples, and samples to the features that a speech model reads."""
