"""Tasks of models of pictures."""
