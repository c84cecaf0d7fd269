"""The names of tensors that exporter, runtime and clients share."""
