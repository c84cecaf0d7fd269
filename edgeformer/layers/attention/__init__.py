"""Attention to earlier tokens and to a source, with the biases, projections and relations that it may have."""
