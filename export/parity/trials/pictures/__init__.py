"""The trials of graphs that read pictures."""
