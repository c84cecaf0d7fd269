"""Parts of modules of transformers that are recognized by running them, and replaced by our ops."""
