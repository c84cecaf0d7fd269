"""From a blueprint to one lowered graph."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from edgeformer.blueprint import Blueprint
from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.capture import capture
from edgeformer.export.lower import Lowered, Target, lower_captured
from edgeformer.export.module_contract import check_caches
from edgeformer.export.tensors import TORCH_PRECISIONS
from edgeformer.graphs import GraphSpec
from edgeformer.manifest import Arithmetic


def build_graph(
    blueprint: Blueprint,
    weights: Mapping[str, Tensor],
    arithmetic: Arithmetic = "fp32",
    target: Target | None = None,
    spec: GraphSpec | None = None,
) -> tuple[ir.Model, Lowered]:
    """Capture one graph of a model (by default its last) and lower it; weights are read when the graph is written."""
    spec = spec or blueprint.graphs[-1]
    graph = capture_graph(blueprint, weights, arithmetic, spec)
    return graph, lower_captured(graph, spec, target or Target())


def capture_graph(
    blueprint: Blueprint, weights: Mapping[str, Tensor], arithmetic: Arithmetic, spec: GraphSpec
) -> ir.Model:
    """Capture one graph of a model. Raises ExportError where a module of the user's cannot be traced."""
    try:
        graph = capture(spec, blueprint, weights, TORCH_PRECISIONS[arithmetic])
    except Exception as error:
        # Somebody else's code may fail in any way; ours failing is a bug, and its traceback is wanted.
        if blueprint.config is not None or isinstance(error, EdgeformerError):
            raise
        raise ExportError(
            f"torch.export cannot trace the module: {type(error).__name__}: {str(error).strip()}\n"
            "A forward may not branch on values, nor on the number of rows or tokens."
        ) from error
    if blueprint.config is None:
        check_caches(graph, blueprint)
    return graph
