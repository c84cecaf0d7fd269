"""The result of `locate`: plain data, and its description in sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan

SHOWN = 5
"""Names of a list that are printed; the others are only counted."""

SAME = (
    "Its op, inputs, attributes and weights are those of a fresh lowering: either what edgeformer emits is wrong, or "
    "onnxruntime's kernel"
)


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A node that computes wrong values.

    Attributes:
        graph: its file.
        canonical: the op of the canonical graph that it implements.
        error: max |Δ| / max |value| of its worst output, NaN where that is not finite or did not run.
        limit: the largest error allowed.
        made_by: the pass or lowering that emitted it.
        feed: the run with the largest error, or `weights` where only the weights differ.
        difference: how it differs from the node of a fresh lowering, or `SAME`.
    """

    graph: str
    node: str
    canonical: str
    op: str
    error: float
    limit: float
    block: str
    made_by: str
    feed: str
    difference: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The result for one graph.

    Attributes:
        graph: its file.
        suspects: the wrong nodes in graph order.
        blocks: the largest error of a single node, by block.
        outputs: errors of the outputs (without caches) of the whole graph, plain and optimised by onnxruntime; measured
            where no node is a suspect.
        runtime_fault: only the optimised form is wrong; the suspects are then its nodes.
        differences: how the graph differs from a fresh lowering, apart from the suspects.
    """

    graph: str
    suspects: tuple[Suspect, ...]
    blocks: dict[str, float]
    outputs: dict[str, float]
    runtime_fault: bool
    differences: tuple[str, ...]


@dataclass(frozen=True)
class Localisation:
    """The results for the graphs of a bundle, in the order in which they run."""

    graphs: tuple[Findings, ...]

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """The suspects of all graphs."""
        return tuple(suspect for found in self.graphs for suspect in found.suspects)

    @property
    def first(self) -> Suspect | None:
        """The first suspect in graph order."""
        return next(iter(self.suspects), None)

    @property
    def differences(self) -> tuple[str, ...]:
        """The differences of all graphs."""
        return tuple(difference for found in self.graphs for difference in found.differences)


def worst(error: float) -> float:
    """Return a sort key of errors, of which NaN is the largest."""
    return inf if isnan(error) else error


def describe(localisation: Localisation) -> str:
    """Describe a result in sentences; those of several graphs are introduced by their files."""
    if len(localisation.graphs) == 1:
        return _describe(localisation.graphs[0])
    return "\n".join(f"In {found.graph}:\n{_describe(found)}" for found in localisation.graphs)


def _describe(found: Findings) -> str:
    lines = []
    if found.runtime_fault:
        lines.append(
            f"The graph is right (its outputs are off by {found.outputs['as it is']:.1e}), and what onnxruntime's "
            f"optimiser makes of it is not ({found.outputs['optimised']:.1e}): this is a fault of onnxruntime. Run "
            "with its optimisations off (ORT_DISABLE_ALL) or with another version of it, and report it there."
        )
    if found.suspects:
        lines += _describe_suspects(*found.suspects)
    elif not found.runtime_fault:
        block = max(found.blocks, key=lambda name: worst(found.blocks[name]))
        lines.append(
            f"Every node by itself computes what it should; the largest error is {found.blocks[block]:.1e}, in {block}."
        )
        lines += [f"The outputs of the graph {form} are off by {error:.1e}." for form, error in found.outputs.items()]
    if found.differences:
        lines.append("Otherwise different from a fresh lowering:")
        lines += [f"  {difference}" for difference in _shortened(found.differences)]
    return "\n".join(lines)


def _describe_suspects(first: Suspect, *more: Suspect) -> list[str]:
    if isnan(first.error):
        error = "it gives no numbers"
    elif first.feed == "weights":
        error = f"its weights are off by {first.error:.1e}, where rounding explains {first.limit:.1e}"
    else:
        allowed = f"rounding explains {first.limit:.1e}" if first.limit else "integers must be exact"
        error = f"off by {first.error:.1e} on the {first.feed}, where {allowed}"
    lines = [
        f"{first.node} ({first.op}, {first.made_by}) is the first wrong node: {error}.",
        f"  It {first.difference}." if first.difference != SAME else f"  {SAME}.",
    ]
    if more:
        lines.append(f"  Also wrong: {', '.join(_shortened([suspect.node for suspect in more]))}.")
    return lines


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:SHOWN], *([f"… and {len(names) - SHOWN} more"] if len(names) > SHOWN else [])]
