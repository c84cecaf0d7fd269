"""The graph's own machinery: canonical ops, node builder, function bodies, cache forms, provenance, tensors."""
