"""Lowerings: from the canonical graph to the ops of one op set. Each states what it requires and never emits a graph
that loads and computes something else.
"""

from edgeformer.export.lower.captured import Lowered, joined, lower, lower_captured
from edgeformer.export.lower.target import CacheChoice, Target, choose_target, target_of
from edgeformer.export.lower.windowed import write_windowed_view

__all__ = [
    "CacheChoice",
    "Lowered",
    "Target",
    "choose_target",
    "joined",
    "lower",
    "lower_captured",
    "target_of",
    "write_windowed_view",
]
