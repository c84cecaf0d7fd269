"""What stands in the place of a block once a model is lowered, and why it is nothing better."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edgeformer.errors import ExportError
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.lower import Lowered, LoweringOptions
from edgeformer.export.passes import PassReport
from edgeformer.manifest import Precision
from edgeformer.runtime.session import CACHE_DTYPES
from verification.op_set_tables.blocks import Block
from verification.op_set_tables.lowering import captured, lowered
from verification.op_set_tables.trial import expected, tried

_PRIMITIVES = """
Add And Cast CastLike Clip Concat Constant CumSum Div Einsum Equal Erf Exp Expand Gather GatherElements Greater
GreaterOrEqual Less MatMul Max Mul Neg Not Or Pad Pow Range Reciprocal ReduceMean ReduceSum Relu Reshape
ScatterElements Shape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
"""
PRIMITIVES = frozenset(_PRIMITIVES.split())
"""Arithmetic, and moving elements. A block that is said in these has no op of its own."""

LEGEND = {
    "●": "an op of its own",
    "◐": "partly",
    "○": "written out in primitives",
    "ƒ": "a function of the model, its body in primitives",
    "✗": "refused",
}
WRITTEN_BEFORE = "it is made of primitives in the canonical graph already, and no rule makes an op of them"
NO_RULE = "the op set has no op for it"


@dataclass(frozen=True)
class Found:
    """What stands in the place of a block: one of LEGEND, the ops, and why it is not better."""

    mark: str
    ops: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def find(block: Block, precision: Precision, target: LoweringOptions) -> Found:
    """Lower the block to a target, look at it, and run it where its provider is there."""
    _, canonical = captured(block.config, precision)
    nodes = [node for node in canonical.graph if re.fullmatch(block.nodes, node.name or "")]
    assert nodes, f"{block.title}: no node is called {block.nodes}"
    try:
        found = _look(nodes, *lowered(block.config, precision, target))
    except ExportError as error:
        return Found("✗", reasons=(str(error),))
    trial = tried(block.config, precision, target)
    if trial.problem is not None:
        return Found("✗", found.ops, (trial.problem,))
    missing = [op for op in found.ops if found.mark != "ƒ" and op not in trial.kernels]
    if trial.ran and missing:
        kernel = f"{CACHE_DTYPES[precision].__name__} {target.provider.upper()} kernel"
        reason = f"there is no {kernel} for {', '.join(missing)}: onnxruntime runs other ops in its place"
        return Found("○", found.ops, (*found.reasons, reason))
    return found


def forget() -> None:
    """Lower and run everything again when it is asked for: the rules are others now."""
    for function in (lowered, tried, expected):
        function.cache_clear()


def _look(nodes: Sequence[ir.Node], graph: ir.Model, done: Lowered) -> Found:
    """What a lowering left where these nodes of the canonical graph were."""
    names = [node.name or "" for node in nodes]
    readers = [use.node.name or "" for node in nodes for output in node.outputs for use in output.uses()]
    left = _at(graph, names)
    if not left:  # a pass put them into the op that read them
        names, left = readers, _at(graph, readers)
    own = tuple(dict.fromkeys(_op(node) for node in left if has_own_op(node)))
    if any(node.domain == DOMAIN for node in left):
        return Found("ƒ", own)
    # Of passes, the first that wanted something with the block, and could not.
    reasons = _reasons(done.rules, names) or ([] if own else _reasons(done.passes, readers)[:1])
    if own:
        return Found("◐" if reasons else "●", own, tuple(reasons))
    return Found("○", reasons=tuple(reasons or [NO_RULE if any(map(has_own_op, nodes)) else WRITTEN_BEFORE]))


def has_own_op(node: ir.Node) -> bool:
    """Whether a node is more than arithmetic."""
    return node.domain != "" or node.op_type not in PRIMITIVES


def _op(node: ir.Node) -> str:
    # An op that is used in several ways is several functions: RMSNorm, RMSNorm_2…
    return re.sub(r"_\d+$", "", node.op_type) if node.domain == DOMAIN else node.op_type


def _at(graph: ir.Model, names: Sequence[str]) -> list[ir.Node]:
    """Nodes that have one of these names, or were emitted in the place of one that had."""
    return [node for node in graph.graph for name in names if f"{node.name}/".startswith(f"{name}/")]


def _reasons(reports: Sequence[PassReport], places: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(reason for report in reports for place, reason in report.misses() if place in places))
