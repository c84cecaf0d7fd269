"""Capture and lower the graphs of a model, each once for all who look at it."""

from functools import cache

import onnx_ir as ir

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import ModelConfig
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.lower import Lowered, LoweringOptions, lower_captured
from edgeformer.manifest.parts import Precision
from edgeformer.models.graph_specs import GraphSpec
from edgeformer.models.model_spec import model_spec_of


@cache
def captured(config: ModelConfig, precision: Precision) -> tuple[GraphSpec, ir.Model]:
    """Return the spec and the canonical graph of a model's last graph. Clone the graph before changing it."""
    model_spec = model_spec_of(config)
    spec = model_spec.graphs[-1]
    return spec, capture(spec, model_spec, RandomWeights(config, seed=0), TORCH_PRECISIONS[precision])


@cache
def lowered(config: ModelConfig, precision: Precision, lowering: LoweringOptions) -> tuple[ir.Model, Lowered]:
    """Return the lowered graph and the report of its lowering. Raises ExportError if the lowering refuses."""
    spec, canonical = captured(config, precision)
    graph = canonical.clone()
    return graph, lower_captured(graph, spec, lowering)
