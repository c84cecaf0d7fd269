"""From the graph of a capture to that of a bundle: all passes and the lowering, for every kind of model."""

from dataclasses import replace

import onnx_ir as ir

from edgeformer.blueprint import Blueprint
from edgeformer.export.lower.ort import Lowered, lower_ort
from edgeformer.export.passes import expected_changes, straighten
from edgeformer.manifest import Provider


def lower_captured(graph: ir.Model, blueprint: Blueprint, provider: Provider) -> Lowered:
    """Rewrite a canonical graph in place; `locate` does it a second time, and must come to the same nodes."""
    if blueprint.config is not None:
        return lower_ort(graph, provider, expected=expected_changes(blueprint.config))
    # A module that was not written for our ops takes detours from one to the next.
    straightened = straighten(graph)
    lowered = lower_ort(graph, provider)
    return replace(lowered, passes=[*straightened, *lowered.passes])
