"""A shim around torch.onnx.export: build its tables once, and skip stages where they would change nothing.

torch.onnx.export builds its registry of operators and its table of decompositions anew in every call, for 0.30 s and
0.06 s of processor time. `tables_built_once` keeps them for the process.

Between `torch.export.export` and the translation to ONNX, torch.onnx.export traces the program again to decompose
composite ops, and interprets it to find implicit type promotions. Both take longer than everything else that it does,
and most of our programs have neither. torch has no option for this, so the shim overrides one method of the program and
one of its graph module, on these instances alone.

Checked with the torch versions in `CHECKED`, on which the skipped stages are `ExportedProgram.run_decompositions` and
loops over `GraphModule.modules()` (torch/onnx/_internal/exporter/_fx_passes.py). On any other version nothing is
skipped: the export is slower and gives the same graph. tests/export/test_capture.py compares the graphs and fails on a
version that is not listed; add the version once these tests pass with it.
"""

import copy
import functools
import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.export import ExportedProgram

from edgeformer.export.graph.canonical import OPS

CHECKED = ("2.13",)
"""Versions of torch (major.minor) that the shim was tested with."""

aten = torch.ops.aten

ELEMENTWISE = {
    aten.abs.default, aten.add.Tensor, aten.div.Tensor, aten.eq.Scalar, aten.gelu.default, aten.lt.Scalar,
    aten.mul.Tensor, aten.neg.default, aten.relu.default, aten.silu.default, aten.sub.Tensor, aten.tanh.default,
}  # fmt: skip
"""Ops that promote types: their inputs may have different types, or another type than the output."""

NOT_COMPOSITE = ELEMENTWISE | {
    operator.getitem, *OPS.values(), aten._assert_tensor_metadata.default, aten.arange.default,
    aten.bitwise_not.default, aten.embedding.default, aten.layer_norm.default, aten.linear.default,
    aten.masked_fill.Scalar, aten.sym_size.int, aten.to.dtype, aten.transpose.int, aten.unsqueeze.default,
    aten.view.default, aten.zeros.default,
}  # fmt: skip
"""Ops that torch.onnx.export does not decompose. `to` is the exception: it becomes a copy, or nothing."""

_LOCK = threading.Lock()
"""Held while functions of torch are replaced."""


@contextmanager
def tables_built_once(version: str = torch.__version__) -> Iterator[None]:
    """Let torch.onnx.export reuse the registry and the table of decompositions of the process's last export.

    Both depend on nothing but the operators that are registered with torch, so they are built again where their number
    has changed. Each export gets copies, since it adds its own translations to the registry. version: of torch.
    """
    if not _is_checked(version):
        yield
        return
    from torch.onnx._internal.exporter import _decomp
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    _builders()  # before they are replaced
    with (
        _LOCK,
        patch.object(ONNXRegistry, "from_torchlib", staticmethod(_registry)),
        patch.object(_decomp, "create_onnx_friendly_decomposition_table", _decompositions),
    ):
        yield


@functools.cache
def _builders() -> tuple[Any, Any]:
    """Return torch's own functions, which build the registry and the table."""
    from torch.onnx._internal.exporter import _decomp
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry.from_torchlib, _decomp.create_onnx_friendly_decomposition_table


def _registry(opset_version: int) -> Any:
    registry = copy.copy(_built_registry(opset_version, _num_operators()))
    registry.functions = {op: list(found) for op, found in registry.functions.items()}
    return registry


def _decompositions(translated: set[Any]) -> dict[Any, Any]:
    return dict(_built_decompositions(frozenset(translated), _num_operators()))


@functools.lru_cache(maxsize=1)
def _built_registry(opset_version: int, num_operators: int) -> Any:
    build, _ = _builders()
    return build(opset_version)


@functools.lru_cache(maxsize=1)
def _built_decompositions(translated: frozenset[Any], num_operators: int) -> dict[Any, Any]:
    _, build = _builders()
    return build(set(translated))


def _num_operators() -> int:
    return len(torch._C._dispatch_get_all_op_names())


def _is_checked(version: str) -> bool:
    return ".".join(version.split(".")[:2]) in CHECKED


def skip_needless_stages(program: ExportedProgram, version: str = torch.__version__) -> ExportedProgram:
    """Return a program for which torch.onnx.export skips the stages that would leave it as it is; it is changed in
    place.

    version: of torch.
    """
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    casts = [node for node in nodes if node.target is aten.to.dtype]
    if (
        not _is_checked(version)
        or any(node.target not in NOT_COMPOSITE for node in nodes)
        or any(len(node.args) != 2 or node.kwargs for node in casts)
    ):
        return program
    for node in casts:
        value, dtype = node.args
        same = value.meta["val"].dtype == dtype
        node.target, node.args = (aten.alias if same else aten._to_copy).default, (value,)
        node.kwargs = {} if same else {"dtype": dtype}
    _override(program, "run_decompositions", lambda decompositions=None: program)
    if not any(map(_promotes, nodes)):
        for node in nodes:
            if node.target is aten._assert_tensor_metadata.default:
                program.graph.erase_node(node)
        # torch.onnx.export looks for type promotions and assertions in each of these modules.
        _override(program.graph_module, "modules", lambda: ())
    return program


def _override(instance: object, method: str, replacement: Any) -> None:
    """Override a method of one instance."""
    assert hasattr(type(instance), method), f"torch has no {type(instance).__name__}.{method} any more"
    object.__setattr__(instance, method, replacement)


def _promotes(node: torch.fx.Node) -> bool:
    """Whether an op computes in another type than that of its inputs; Python floats count as float32."""
    if node.target not in ELEMENTWISE:
        return False
    types = {each.meta["val"].dtype for each in node.all_input_nodes if isinstance(each.meta["val"], Tensor)}
    types |= {torch.float32 for each in node.args if isinstance(each, float)}
    return len(types) > 1 or node.meta["val"].dtype not in {torch.bool, *types}
