"""Runs of a decoder graph over a cache: prompts and decode steps, on the host and on devices."""
