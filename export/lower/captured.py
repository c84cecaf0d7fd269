"""From the graph of a capture to that of a bundle: all passes and the lowering, for every kind of model."""

from dataclasses import replace

import onnx_ir as ir

from edgeformer.export.lower.ort import Lowered, lower_ort
from edgeformer.export.passes import expected_changes, straighten
from edgeformer.graphs import GraphSpec
from edgeformer.manifest import Provider


def lower_captured(graph: ir.Model, spec: GraphSpec, provider: Provider) -> Lowered:
    """Rewrite a canonical graph in place; `locate` does it a second time, and must come to the same nodes."""
    if spec.stack is not None:
        return lower_ort(graph, provider, expected=expected_changes(spec.stack))
    # A module that was not written for our ops takes detours from one to the next.
    straightened = straighten(graph)
    lowered = lower_ort(graph, provider)
    return replace(lowered, passes=[*straightened, *lowered.passes])
