"""Whether onnxruntime's CUDA provider runs a graph, from the graph alone: each node's kernel, types and attributes.

`kernel_table` is the provider's own list of kernels, kept as data; `typed_nodes` finds the types that reach each node;
`attribute_rules` holds what kernels require beyond types; `placement` decides where onnxruntime runs each node, and
`audit` reports it for the graphs of a folder.
"""

from edgeformer.check.cuda.audit import GraphAudit, ProviderAudit, audit_cuda

__all__ = ["GraphAudit", "ProviderAudit", "audit_cuda"]
