"""From the graph of a capture to that of a bundle, for every kind of model and every op set.

    canonical graph ─→ passes ─→ rules of the op set ─→ bodies of what is left ─→ clean-up

Passes rewrite canonical ops to canonical ops; a rule puts ops of the target in their place; each reports where it fired
and, where it did not though the place looked right, why.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.errors import ExportError
from edgeformer.export.graph.canonical import DOMAIN
from edgeformer.export.graph.editing import remove_initializer
from edgeformer.export.graph.function_bodies import decompose_all
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.lower import ort, portable, standard
from edgeformer.export.lower.functions import keep_as_functions
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.passes import PassReport, expected_changes, quantize_weights
from edgeformer.export.passes import canonicalize as canonicalize
from edgeformer.graph_specs import GraphSpec

Rule = Callable[[ir.Model, LoweringOptions], PassReport]


@dataclass(frozen=True)
class Lowered:
    """What was done to a graph on its way to an op set.

    passes: what each rewrite of the canonical graph changed. rules: where each rule put ops of the target, and why not
    elsewhere: there stands the body of the op, in primitives.
    """

    passes: list[PassReport]
    rules: list[PassReport]
    notes: tuple[str, ...] = ()

    @property
    def fallbacks(self) -> list[str]:
        """Canonical ops that were written out in primitives where the op set may have an op for them, and why."""
        reasons = Counter((rule.name, reason) for rule in self.rules for _, reason in rule.misses())
        written = [
            f"{op} written out in {count} {'place' if count == 1 else 'places'}: {reason}"
            for (op, reason), count in reasons.items()
        ]
        return [*self.notes, *written]


def joined(graphs: Sequence[Lowered]) -> Lowered:
    """What was done to several graphs, as if they were one."""
    return Lowered(
        _joined([report for each in graphs for report in each.passes]),
        _joined([report for each in graphs for report in each.rules]),
        tuple(note for each in graphs for note in each.notes),
    )


def _joined(reports: Sequence[PassReport]) -> list[PassReport]:
    totals: dict[str, PassReport] = {}
    for report in reports:
        total = totals.setdefault(report.name, PassReport(report.name))
        total.changed += report.changed
        total.places += report.places
        total.missed += report.missed
    return list(totals.values())


def lower_captured(graph: ir.Model, spec: GraphSpec, lowering: LoweringOptions) -> Lowered:
    """Rewrite a canonical graph in place; `locate` does it a second time, and must come to the same nodes."""
    if spec.stack is not None:
        return lower(graph, lowering, expected_changes(spec.stack))
    # A module that was not written for our ops takes detours from one to the next.
    canonicalized = canonicalize(graph)
    lowered = lower(graph, lowering)
    return replace(lowered, passes=[*canonicalized, *lowered.passes])


def lower(model: ir.Model, lowering: LoweringOptions, expected: dict[str, int] | None = None) -> Lowered:
    """Rewrite a canonical graph in place for an op set.

    expected: how often each pass must fire for this model; fewer is an ExportError, so that a model never silently
    loses a fusion (a pass that says why it missed a place is excused).
    """
    op_set = {"ort": ort, "standard": standard, "portable": portable}[lowering.ops]
    passes = op_set.rewrite(model)
    for report in passes:
        wanted = (expected or {}).get(report.name, report.changed)
        if report.changed + len(report.missed) < wanted:
            raise ExportError(
                f"pass {report.name} changed {report.changed} places where this model has {wanted}. "
                "This is a bug in edgeformer; please report it with the model's config.json."
            )
    if lowering.quantization is not None:
        passes.append(
            quantize_weights(
                model, lowering.quantization, lowering.calibrated, primitive_gathers=lowering.primitive_gathers
            )
        )
    rules = [rule(model, lowering) for rule in op_set.RULES]
    rest = keep_as_functions if lowering.functions else decompose_all
    rules.append(rest(model, lowering.cache_form))
    _clean_up(model)
    _declare_opsets(model, lowering)
    return Lowered(passes, rules)


def _clean_up(model: ir.Model) -> None:
    # Types are inferred again by whoever loads the graph; not all look into functions for that.
    for value in (output for node in model.graph if node.domain != DOMAIN for output in node.outputs):
        if not value.is_graph_output():
            value.shape = value.type = None
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _share_constants(model)
    for clean_up in (
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.RemoveUnusedNodesPass(),
    ):
        clean_up(model)


def _share_constants(model: ir.Model) -> None:
    """Keep one initializer of each constant. Weights are left alone: comparing them would read them."""
    first: dict[tuple[ir.DataType, bytes, tuple[int, ...]], ir.Value] = {}
    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or isinstance(tensor, StreamedTensor):
            continue
        kept = first.setdefault((tensor.dtype, tensor.tobytes(), tuple(tensor.shape.numpy())), value)
        if kept is not value:
            ir.convenience.replace_all_uses_with(value, kept)
            remove_initializer(model, value)


OPSETS = {
    ("standard", "dynamic"): 23,
    ("standard", "static"): 24,
    ("portable", "dynamic"): 18,
    ("portable", "static"): 18,
}
"""The version of ONNX that an op set is written in, by the form of its caches: TensorScatter came with 24. `ort` stays
with the version that the graph was captured in, but for products that round token by token.
"""

PER_TOKEN = 21
"""Since when QuantizeLinear has blocks."""

REDEFINED = {"GroupNormalization": 21, "DFT": 20, "GridSample": 20}
"""Ops that mean something else from this version on; of all others a new version only widened what they take."""


def _declare_opsets(model: ir.Model, lowering: LoweringOptions) -> None:
    """Say which version of ONNX the graph is written in, once it is certain that it means the same there."""
    if lowering.ops == "ort":
        model.opset_imports[ort.CONTRIB] = 1
    captured = model.opset_imports[""]
    opset = _opset_of(lowering, captured)
    if opset == captured:
        return
    for op in sorted({node.op_type for node in model.graph if node.domain == ""}):
        redefined = min(captured, opset) < REDEFINED.get(op, 0) <= max(captured, opset)
        # The op set ort has ops that ONNX lacks, some of them in ONNX's own domain.
        if redefined or (lowering.ops != "ort" and not _exists(op, opset)):
            instead = "--activations block and without --prefill" if lowering.ops == "ort" else "--ops ort"
            raise ExportError(
                f"the module uses the op {op}, which opset {opset} of ONNX lacks or takes for something else, and this "
                f"graph is written in it. Export with {instead}."
            )
    model.opset_imports[""] = opset
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])


def _opset_of(lowering: LoweringOptions, captured: int) -> int:
    if lowering.ops != "ort":
        return OPSETS[lowering.ops, lowering.cache_form]
    per_token = lowering.quantization is not None and lowering.quantization.per_token
    return max(captured, PER_TOKEN) if per_token else captured


def _exists(op: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(op, opset, "").since_version <= opset)
    except onnx.defs.SchemaError:
        return False
