"""Which clients will load a folder, and why one won't: told from what is on disk, whoever wrote it.

`folder` and `graph` read files into plain facts, weights apart; `contract` holds those against edgeformer's own
contract, and `clients` against what each client takes. Needs onnx to read graphs; neither torch nor any client.
"""

from edgeformer.check.finding import Finding, Severity, Verdict
from edgeformer.check.report import Report, check

__all__ = ["Finding", "Report", "Severity", "Verdict", "check"]
