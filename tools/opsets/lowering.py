"""The graphs of a model, before and after they are lowered: each is made once, for all who look at it."""

from functools import cache

import onnx_ir as ir

from edgeformer.blueprint import blueprint_of
from edgeformer.config import ModelConfig
from edgeformer.export.capture import capture
from edgeformer.export.lower import Lowered, Target, lower_captured
from edgeformer.export.tensors import TORCH_PRECISIONS
from edgeformer.graphs import GraphSpec
from edgeformer.manifest import Precision
from edgeformer.weights import RandomWeights


@cache
def captured(config: ModelConfig, precision: Precision) -> tuple[GraphSpec, ir.Model]:
    """The canonical graph of a model's last graph. Whoever changes it takes a clone."""
    blueprint = blueprint_of(config)
    spec = blueprint.graphs[-1]
    return spec, capture(spec, blueprint, RandomWeights(config, seed=0), TORCH_PRECISIONS[precision])


@cache
def lowered(config: ModelConfig, precision: Precision, target: Target) -> tuple[ir.Model, Lowered]:
    """The graph for a target, and what was done to it. Raises ExportError where the lowering refuses."""
    spec, canonical = captured(config, precision)
    graph = canonical.clone()
    return graph, lower_captured(graph, spec, target)
