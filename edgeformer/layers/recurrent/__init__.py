"""Layers over states of a fixed size: short convolutions, state spaces and linear attention."""
