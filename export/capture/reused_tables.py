"""Tables that torch.onnx.export makes anew in every call and need not, and nodes that it runs for nothing.

It builds its registry of operators and its table of decompositions, for 0.30 s and 0.06 s of processor time, and for
every node of ONNX the signature of its op. Where a program promotes types, it interprets all of the program to insert
casts before a few nodes. `tables_built_once` keeps the tables for the process, and runs these nodes alone.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx
import torch
import torch.fx.config
from onnx_ir.schemas import OpSignature

from edgeformer.export.capture.checked_torch import LOCK, is_checked

PROMOTING = "edgeformer: nodes that promote types"
"""Key under which the metadata of a graph module lists them, where they are known."""


@contextmanager
def tables_built_once(version: str = torch.__version__) -> Iterator[None]:
    """Let torch.onnx.export reuse the registry, the table of decompositions and the signatures of earlier exports.

    The first two depend on nothing but the operators that are registered with torch, so they are built again where
    their number has changed. Each export gets copies, since it adds its own translations to the registry. version: of
    torch.
    """
    if not is_checked(version):
        yield
        return
    from torch.onnx._internal.exporter import _decomp
    from torch.onnx._internal.exporter._registration import ONNXRegistry
    from torch.onnx._internal.fx.passes.type_promotion import _TypePromotionInterpreter

    _builders()  # before they are replaced
    real_run_node = _TypePromotionInterpreter.run_node
    operators = len(torch._C._dispatch_get_all_op_names())
    with (
        LOCK,
        patch.object(torch.fx.config, "do_not_emit_stack_traces", True),
        patch.object(
            ONNXRegistry, "from_torchlib", staticmethod(functools.partial(_registry, num_operators=operators))
        ),
        patch.object(
            _decomp,
            "create_onnx_friendly_decomposition_table",
            lambda translated: dict(_built_decompositions(frozenset(translated), operators)),
        ),
        patch.object(OpSignature, "from_op_schema", _signature),
        patch.object(_TypePromotionInterpreter, "run_node", functools.partialmethod(_run_promoting, real_run_node)),
    ):
        yield


def _run_promoting(self: Any, run_node: Callable[..., Any], node: torch.fx.Node) -> Any:
    """Run a node, which may promote its types. Nodes that are known to promote none give what they gave before."""
    promoting = self.module.meta.get(PROMOTING)
    if promoting is None or node.op != "call_function" or node in promoting:
        return run_node(self, node)
    return node.meta.get("val")


def _signature(schema: onnx.defs.OpSchema) -> OpSignature:
    key = schema.domain, schema.name, schema.since_version
    if key not in _SIGNATURES:
        _SIGNATURES[key] = _new_signature(schema)
    return _SIGNATURES[key]


_new_signature = OpSignature.from_op_schema
_SIGNATURES: dict[tuple[str, str, int], OpSignature] = {}


@functools.cache
def _builders() -> tuple[Any, Any]:
    """Return torch's own functions, which build the registry and the table."""
    from torch.onnx._internal.exporter import _decomp
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry.from_torchlib, _decomp.create_onnx_friendly_decomposition_table


def _registry(opset_version: int, num_operators: int) -> Any:
    registry = copy.copy(_built_registry(opset_version, num_operators))
    registry.functions = {op: list(found) for op, found in registry.functions.items()}
    return registry


@functools.lru_cache(maxsize=1)
def _built_registry(opset_version: int, num_operators: int) -> Any:
    build, _ = _builders()
    return build(opset_version)


@functools.lru_cache(maxsize=1)
def _built_decompositions(translated: frozenset[Any], num_operators: int) -> dict[Any, Any]:
    _, build = _builders()
    return build(set(translated))
