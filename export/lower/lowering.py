"""Lower a captured graph to the graph of a bundle, for every kind of model and every op set.

    canonical graph ─→ passes ─→ rules of the op set ─→ function bodies of what is left ─→ clean-up

Passes rewrite canonical ops to canonical ops; a rule replaces canonical ops by ops of the op set. Each reports the
nodes that it changed, and why it left others that looked alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from edgeformer.contract.ops import DOMAIN
from edgeformer.errors import ExportError
from edgeformer.export.graph.editing import remove_initializer
from edgeformer.export.graph.function_bodies import decompose_all
from edgeformer.export.graph.pass_report import PassReport
from edgeformer.export.graph.provenance import NodeOrigin, collect_origins
from edgeformer.export.graph.tensors import StreamedTensor
from edgeformer.export.lower import ort, portable, standard
from edgeformer.export.lower.functions import keep_as_functions
from edgeformer.export.lower.options import LoweringOptions
from edgeformer.export.lower.ort.per_token_products import PER_TOKEN_OPSET
from edgeformer.export.lower.widen_bfloat16 import widen_bfloat16
from edgeformer.export.passes import (
    canonicalize,
    compute_tables,
    expected_changes,
    half_scales,
    make_optional,
    optional_logits,
    pack_integers,
    quantize_weights,
)
from edgeformer.models.graph_specs import TABLE_ROW, GraphSpec


@dataclass(frozen=True)
class Lowered:
    """The result of lowering a graph.

    passes: reports of the passes. rules: reports of the rules; an op that a rule missed was decomposed. origins: where
    each node of the lowered graph comes from, by name.
    """

    passes: list[PassReport]
    rules: list[PassReport]
    notes: tuple[str, ...] = ()
    origins: Mapping[str, NodeOrigin] = field(default_factory=dict)

    @property
    def fallbacks(self) -> list[str]:
        """Canonical ops that were decomposed although the op set may have an op for them, and why."""
        reasons = Counter((rule.name, miss.reason) for rule in self.rules for miss in rule.misses)
        written = [
            f"{op} decomposed in {count} {'place' if count == 1 else 'places'}: {reason}"
            for (op, reason), count in reasons.items()
        ]
        return [*self.notes, *written]


def joined(graphs: Sequence[Lowered]) -> Lowered:
    """Return the reports of several graphs, added up by the name of the pass or rule."""
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
        total.misses += report.misses
    return list(totals.values())


def lower_captured(graph: ir.Model, graph_spec: GraphSpec, lowering: LoweringOptions) -> Lowered:
    """Lower a captured graph in place; `locate` lowers it a second time and must get the same nodes."""
    canonicalized = [] if graph_spec.stack is not None else canonicalize(graph)
    shortened = []
    alone = len(graph_spec.caches) == 1  # of a decoder without an encoder
    if alone and (report := optional_logits(graph)).changed:
        shortened.append(report)
    lowered = lower(graph, lowering, expected_changes(graph_spec.stack) if graph_spec.stack is not None else None)
    make_optional(graph, 0 if graph_spec.stack is None else graph_spec.stack.context_length)
    for output in [each for each in graph.graph.outputs if each.name == TABLE_ROW]:
        graph.graph.outputs.remove(output)
        common_passes.RemoveUnusedNodesPass()(graph)
    return replace(lowered, passes=[*canonicalized, *shortened, *lowered.passes])


def lower(model: ir.Model, lowering: LoweringOptions, expected: Mapping[str, int] | None = None) -> Lowered:
    """Lower a canonical graph in place.

    expected: how many nodes each pass must change; fewer are an ExportError, so that a model never silently loses a
    fusion (nodes that the pass reports as missed are counted).
    """
    op_set = {"ort": ort, "standard": standard, "portable": portable}[lowering.ops]
    passes = op_set.rewrite(model)
    for report in passes:
        wanted = (expected or {}).get(report.name, report.changed)
        if report.changed + len(report.misses) < wanted:
            raise ExportError(
                f"pass {report.name} changed {report.changed} places where this model has {wanted}. "
                "This is a bug in edgeformer; please report it with the model's config.json."
            )
    if lowering.quantization is not None:
        passes.append(
            quantize_weights(
                model,
                lowering.quantization,
                lowering.calibrated,
                primitive_gathers=lowering.place.primitive_gathers,
                whole_blocks=not lowering.rules.fills_blocks,
            )
        )
    rules = [rule(model, lowering) for rule in op_set.RULES]
    rest = keep_as_functions if lowering.functions else decompose_all
    rules.append(rest(model, lowering.cache_form))
    if lowering.quantization is not None:
        reports = [pack_integers(model)]
        if lowering.quantization.half_scales:  # where bytes count
            reports += [half_scales(model), compute_tables(model)]
        passes += [report for report in reports if report.changed]
    if lowering.rules.widens_bfloat16:
        passes += [report for report in [widen_bfloat16(model)] if report.changed]
    _clean_up(model)
    _declare_opsets(model, lowering)
    return Lowered(passes, rules, origins=collect_origins(model))


def _clean_up(model: ir.Model) -> None:
    # Runtimes infer types again when they load the graph. Not all of them look into functions for that.
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
    """Keep one initializer of each constant. Weights stay: comparing them would read them."""
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
"""Opset of ONNX of an op set, by the form of its caches: TensorScatter came with 24. `ort` keeps the opset of the
captured graph, except for dynamic per-token activation quantization.
"""

REDEFINED = {"GroupNormalization": 21, "DFT": 20, "GridSample": 20}
"""Ops that compute something else from this opset on; new versions of all other ops only accept more."""


def _declare_opsets(model: ir.Model, lowering: LoweringOptions) -> None:
    """Declare the opset of ONNX. Raises ExportError for ops that this opset lacks or redefines."""
    if lowering.ops == "ort":
        model.opset_imports[ort.CONTRIB] = 1
    captured = model.opset_imports[""]
    opset = _opset_of(lowering, captured)
    if opset == captured:
        return
    for op in sorted({node.op_type for node in model.graph if node.domain == ""}):
        redefined = min(captured, opset) < REDEFINED.get(op, 0) <= max(captured, opset)
        # ONNX Runtime has ops of its own in ONNX's domain.
        if redefined or (lowering.ops != "ort" and not _exists(op, opset)):
            instead = "--activations block" if lowering.ops == "ort" else "--ops ort"
            raise ExportError(
                f"the module uses the op {op}, which opset {opset} of ONNX lacks or takes for something else, and this "
                f"graph is written in it. Export with {instead}."
            )
    model.opset_imports[""] = opset
    for function in model.functions.values():
        if "" in function.opset_imports:  # a body can stand in the place of its calls if its opset is the model's
            function.opset_imports[""] = opset
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])


def _opset_of(lowering: LoweringOptions, captured: int) -> int:
    if lowering.ops != "ort":
        return OPSETS[lowering.ops, lowering.cache_form]
    per_token = lowering.quantization is not None and lowering.quantization.per_token
    return max(captured, PER_TOKEN_OPSET) if per_token else captured


def _exists(op: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(op, opset, "").since_version <= opset)
    except onnx.defs.SchemaError:
        return False
