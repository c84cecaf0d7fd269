"""The nodes of a graph that other execution providers take, by the operators that they publish; none was run.

`operators.json` has, for each provider, its published operators by name (of other domains than ONNX's, domain::name),
with what the operator must keep to, and the file and the commit that say so.
"""

from edgeformer.check.published.audit import OperatorAudit, audit_operators
from edgeformer.check.published.tables import OPERATOR_TABLES

__all__ = ["OPERATOR_TABLES", "OperatorAudit", "audit_operators"]
