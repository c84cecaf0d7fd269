"""Trials of models that read pictures."""
