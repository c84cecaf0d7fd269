"""Does the graph compute what PyTorch computes? Run it against the same weights in float64, every way that clients
do."""

from edgeformer.export.parity.report import Check, Report
from edgeformer.export.parity.trials.decoder import Mode
from edgeformer.export.parity.verify import open_bundle, open_subject, verify, verify_graph

__all__ = ["Check", "Mode", "Report", "open_bundle", "open_subject", "verify", "verify_graph"]
