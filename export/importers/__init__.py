"""The ways in: a checkpoint, a module of your own, a module of transformers. Each becomes a model spec and weights."""
