"""Lowerings: from the canonical graph to the ops of one op set. Each states what it requires and never emits a graph
that loads and computes something else.
"""

from edgeformer.export.lower.ort import Lowered, lower_ort

__all__ = ["Lowered", "lower_ort"]
