"""Check from its files which clients will load a folder, and why one won't; any exporter may have written it.

`folder` and `graph_facts` read files, without weights, into plain facts. `contract_rules` compares the facts with
edgeformer's tensor contract, `session_rules` with what onnxruntime opens, and `clients` with what each client requires.
This package needs onnx to read graphs; it needs neither torch nor any client.
"""

from edgeformer.check.finding import Finding, Severity, Verdict
from edgeformer.check.report import CheckReport, check

__all__ = ["CheckReport", "Finding", "Severity", "Verdict", "check"]
