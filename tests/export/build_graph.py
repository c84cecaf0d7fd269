"""Capture one graph of a model and lower it, for tests that look at graphs and need no bundle."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from edgeformer.export.capture import capture_graph
from edgeformer.export.lower.lowering import Lowered, lower_captured
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.manifest.parts import Arithmetic
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import ModelSpec


def build_graph(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    arithmetic: Arithmetic = "fp32",
    lowering: LoweringOptions | None = None,
    graph_spec: GraphSpec | None = None,
) -> tuple[ir.Model, Lowered]:
    """Capture one graph of a model (by default its last) and lower it; weights are read when the graph is written."""
    graph_spec = graph_spec or model_spec.graphs[-1]
    graph = capture_graph(model_spec, weights, arithmetic, graph_spec)
    return graph, lower_captured(graph, graph_spec, lowering or LoweringOptions())
