"""Modules of models of pictures: towers, projectors, and what reads their states."""
