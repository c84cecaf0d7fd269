"""Lowerings from the canonical graph to the ops of one op set.

Each rule states what it requires, and never emits a graph that loads but computes something else.
"""

from edgeformer.export.lower.job import GraphJob, job_of_bundle
from edgeformer.export.lower.lowering import Lowered, joined, lower, lower_captured
from edgeformer.export.lower.options import LoweringOptions

__all__ = [
    "GraphJob",
    "Lowered",
    "LoweringOptions",
    "job_of_bundle",
    "joined",
    "lower",
    "lower_captured",
]
