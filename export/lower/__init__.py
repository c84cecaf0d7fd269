"""Lowerings from the canonical graph to the ops of one op set.

Each rule states what it requires, and never emits a graph that loads but computes something else.
"""

from edgeformer.export.lower.lowering import Lowered, joined, lower, lower_captured
from edgeformer.export.lower.options import LoweringOptions, lowering_options_of
from edgeformer.export.lower.windowed_graph import write_windowed_graph

__all__ = [
    "Lowered",
    "LoweringOptions",
    "joined",
    "lower",
    "lower_captured",
    "lowering_options_of",
    "write_windowed_graph",
]
