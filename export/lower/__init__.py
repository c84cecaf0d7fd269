"""Lowerings: from the canonical graph to the ops of one op set. Each states what it requires and never emits a graph
that loads and computes something else.
"""

from edgeformer.export.lower.captured import lower_captured
from edgeformer.export.lower.ort import Lowered, joined, lower_ort
from edgeformer.export.lower.windowed import write_windowed_view

__all__ = ["Lowered", "joined", "lower_captured", "lower_ort", "write_windowed_view"]
