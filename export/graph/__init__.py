"""The graph's own machinery: canonical ops, the node builder, queries and edits, reports and provenance.

Passes and lowerings import from here. Beside it stand `function_bodies` (canonical ops in primitives), `cache_forms`,
and `tensors` (weights that are read when they are written).
"""

from edgeformer.export.graph.builder import NodeBuilder, replace_each, replace_node
from edgeformer.export.graph.canonical import DOMAIN, OPS, CanonicalInputs, canonical_inputs
from edgeformer.export.graph.editing import (
    add_initializer,
    canonical_nodes,
    dim,
    dtype_of,
    head_dim_of,
    producer,
    read_once,
    remove_if_unused,
    remove_initializer,
    same_type,
    streamed,
)
from edgeformer.export.graph.pass_report import Miss, PassReport
from edgeformer.export.graph.provenance import NodeOrigin, origin_of, record_change
from edgeformer.export.graph.tensors import StreamedTensor

__all__ = [
    "DOMAIN",
    "OPS",
    "CanonicalInputs",
    "Miss",
    "NodeBuilder",
    "NodeOrigin",
    "PassReport",
    "StreamedTensor",
    "add_initializer",
    "canonical_inputs",
    "canonical_nodes",
    "dim",
    "dtype_of",
    "head_dim_of",
    "origin_of",
    "producer",
    "read_once",
    "record_change",
    "remove_if_unused",
    "remove_initializer",
    "replace_each",
    "replace_node",
    "same_type",
    "streamed",
]
