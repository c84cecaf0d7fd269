"""Whether a provider of onnxruntime runs a graph, from the graph alone: each node's kernel, types and attributes.

`kernel_table` has the kernels of providers, kept as data; `typed_nodes` finds the types that reach each node;
`attribute_rules` holds what kernels require beyond types, in a file for each provider; `placement` decides where
onnxruntime runs each node, and `audit` reports it for the graphs of a folder.
"""

from edgeformer.check.providers.audit import GraphAudit, ProviderAudit, audit_provider

__all__ = ["GraphAudit", "ProviderAudit", "audit_provider"]
