"""Commands that measure bundles: speed, quality and size."""
