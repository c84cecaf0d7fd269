"""Capture one graph of a model, and refuse a user's module that cannot be traced or handles its caches itself."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from edgeformer.errors import EdgeformerError, ExportError
from edgeformer.export.capture.cache_contract import check_caches
from edgeformer.export.capture.trace import capture
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.graph_specs import GraphSpec
from edgeformer.manifest import Arithmetic
from edgeformer.model_spec import ModelSpec


def capture_graph(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], arithmetic: Arithmetic, spec: GraphSpec
) -> ir.Model:
    """Capture one graph of a model. Raises ExportError where a module of the user's cannot be traced."""
    try:
        graph = capture(spec, model_spec, weights, TORCH_PRECISIONS[arithmetic])
    except Exception as error:
        # Somebody else's code may fail in any way; ours failing is a bug, and its traceback is wanted.
        if model_spec.config is not None or isinstance(error, EdgeformerError):
            raise
        raise ExportError(
            f"torch.export cannot trace the module: {type(error).__name__}: {str(error).strip()}\n"
            "A forward may not branch on values, nor on the number of rows or tokens."
        ) from error
    if model_spec.config is None:
        check_caches(graph, model_spec)
    return graph
