"""Commands that list what there is."""
