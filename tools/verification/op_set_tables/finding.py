"""Find what replaced a block in a lowered graph, and why it was not something better."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgeformer.contract.ops import DOMAIN, FUNCTIONS
from edgeformer.errors import ExportError
from edgeformer.export.lower import Lowered, LoweringOptions
from edgeformer.export.passes import PassReport
from edgeformer.manifest.parts import Precision
from edgeformer.runtime.sessions.session import CACHE_DTYPES
from verification.op_set_tables.blocks import Block
from verification.op_set_tables.lowering import captured, lowered
from verification.op_set_tables.trial import expected, tried

_PRIMITIVES = """
Add And Cast CastLike Clip Concat Constant CumSum Div Einsum Equal Erf Exp Expand Gather GatherElements GatherND Greater
GreaterOrEqual Less MatMul Max Min Mod Mul Neg Not Or Pad Pow Range Reciprocal ReduceMean ReduceSum Relu Reshape Scan
ScatterElements Shape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
"""
PRIMITIVES = frozenset(_PRIMITIVES.split())
"""Arithmetic and data movement. A block that consists of these has no op of its own."""

LEGEND = {
    "●": "an op of its own",
    "◐": "partly",
    "○": "decomposed into primitives",
    "ƒ": "a function of the model, its body in primitives",
    "✗": "refused",
}
PRIMITIVES_BEFORE = "it consists of primitives in the canonical graph already, and no rule fuses them"
KERNELS = {op.name for op in FUNCTIONS}
NO_RULE = "the op set has no op for it"


@dataclass(frozen=True)
class Found:
    """The nodes that replaced a block: a mark of LEGEND, the ops, and the reasons why it is not better."""

    mark: str
    ops: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def find(block: Block, precision: Precision, lowering: LoweringOptions) -> Found:
    """Lower a block, look at what replaced it, and run the graph if its provider is available."""
    _, canonical = captured(block.config, precision)
    nodes = [node for node in canonical.graph if re.fullmatch(block.nodes, node.name or "")]
    assert nodes, f"{block.title}: no node is called {block.nodes}"
    try:
        found = _look(nodes, *lowered(block.config, precision, lowering))
    except ExportError as error:
        return Found("✗", reasons=(str(error),))
    trial = tried(block.config, precision, lowering)
    if trial.problem is not None:
        return Found("✗", found.ops, (trial.problem,))
    missing = [op for op in found.ops if found.mark != "ƒ" and op not in trial.kernels]
    if trial.ran and missing:
        kernel = f"{CACHE_DTYPES[precision].__name__} {lowering.runs_on.title} kernel"
        reason = f"there is no {kernel} for {', '.join(missing)}: onnxruntime runs other ops in its place"
        return Found("○", found.ops, (*found.reasons, reason))
    return found


def forget() -> None:
    """Clear the caches, so that everything is lowered and run again with changed rules."""
    for function in (lowered, tried, expected):
        function.cache_clear()


def _look(nodes: Sequence[ir.Node], graph: ir.Model, done: Lowered) -> Found:
    """Return what a lowering left in place of these nodes of the canonical graph."""
    names = [node.name or "" for node in nodes]
    readers = [use.node.name or "" for node in nodes for output in node.outputs for use in output.uses()]
    left = _at(graph, names)
    if not left:  # a pass merged them into the op that reads them
        names, left = readers, _at(graph, readers)
    own = tuple(dict.fromkeys(_op(node) for node in left if has_own_op(node)))
    if any(node.domain == DOMAIN for node in left):
        return Found("ƒ", own)
    # Of the passes, report the first that matched the block and could not rewrite it.
    reasons = _reasons(done.rules, names) or ([] if own else _reasons(done.passes, readers)[:1])
    if own:
        return Found("◐" if reasons else "●", own, tuple(reasons))
    return Found("○", reasons=tuple(reasons or [NO_RULE if any(map(has_own_op, nodes)) else PRIMITIVES_BEFORE]))


def has_own_op(node: ir.Node) -> bool:
    """Return whether a node is more than a primitive."""
    return node.domain != "" or node.op_type not in PRIMITIVES


def _op(node: ir.Node) -> str:
    # An op with several sets of attributes becomes several functions: RMSNorm, RMSNorm_2…
    return re.sub(r"_\d+$", "", node.op_type) if node.domain == DOMAIN else node.op_type


def _at(graph: ir.Model, names: Sequence[str]) -> list[ir.Node]:
    """Return nodes with one of these names, and nodes emitted in place of one."""
    found = [node for node in graph.graph for name in names if f"{node.name}/".startswith(f"{name}/")]
    return [each for node in found for each in _as_clients_run(graph, node)]


def _as_clients_run(graph: ir.Model, node: ir.Node) -> list[ir.Node]:
    """Return the body of a function for which a kernel of ours stands in, or the node itself."""
    function = graph.functions.get(node.op_identifier())
    return [node] if function is None or node.op_type not in KERNELS else list(function)


def _reasons(reports: Sequence[PassReport], places: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(reason for report in reports for place, reason in report.misses if place in places))
