"""Graphs of files: what they call, and what is changed in them as they are opened."""
