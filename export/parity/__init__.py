"""Parity: run a graph in every way that clients do, and compare it with the same weights in float64 PyTorch."""

from edgeformer.export.importers.opened_bundle import find_checkpoint, open_bundle, open_subject
from edgeformer.export.parity.report import Check, Report
from edgeformer.export.parity.verify import verify, verify_graph, verify_module

__all__ = [
    "Check",
    "Report",
    "find_checkpoint",
    "open_bundle",
    "open_subject",
    "verify",
    "verify_graph",
    "verify_module",
]
