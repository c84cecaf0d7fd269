"""Tasks of encoders of texts."""
