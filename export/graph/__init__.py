"""The graph's own machinery: canonical ops, the node builder, function bodies, cache forms, streamed tensors."""
