"""What `locate` found: plain data, and the same in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan

SHOWN = 5
"""Names of a list that are printed before the rest is counted."""

SAME = (
    "Its op, inputs, attributes and weights are those of a fresh lowering: either what edgeformer emits is wrong, or "
    "onnxruntime's kernel"
)


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A node that computes something else.

    canonical: the op of the canonical graph that it stands for. error: max |Δ| / max |value| of its worst output, NaN
    where it gave none or no number; limit: what is allowed. made_by: the pass or lowering that emitted it. feed: the
    run that shows it most, or `weights` where only comparing them does. difference: how it differs from the node of a
    fresh lowering, or that it does not.
    """

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
class Localisation:
    """What was found about a graph.

    first: the first suspect in graph order. blocks: the largest error of a single node, by block. logits: error of the
    logits of the whole graph, as it is and as onnxruntime optimises it; measured where no node is a suspect.
    runtime_fault: the graph is right and its optimised form is not; the suspects are then nodes of that form.
    differences: what differs from a fresh lowering and belongs to no suspect.
    """

    first: Suspect | None
    suspects: tuple[Suspect, ...]
    blocks: dict[str, float]
    logits: dict[str, float]
    runtime_fault: bool
    differences: tuple[str, ...]


def worst(error: float) -> float:
    """Orders errors: NaN is the worst."""
    return inf if isnan(error) else error


def describe(found: Localisation) -> str:
    """Say in plain words what was found."""
    lines = []
    if found.runtime_fault:
        lines.append(
            f"The graph is right (logits off by {found.logits['as it is']:.1e}), and what onnxruntime's optimiser "
            f"makes of it is not ({found.logits['optimised']:.1e}): this is a fault of onnxruntime. Run with its "
            "optimisations off (ORT_DISABLE_ALL) or with another version of it, and report it there."
        )
    if found.first is not None:
        lines += _describe_suspects(found.first, found.suspects)
    elif not found.runtime_fault:
        block = max(found.blocks, key=lambda name: worst(found.blocks[name]))
        lines.append(
            f"Every node by itself computes what it should; the largest error is {found.blocks[block]:.1e}, in {block}."
        )
        lines += [f"The logits of the graph {form} are off by {error:.1e}." for form, error in found.logits.items()]
    if found.differences:
        lines.append("Otherwise different from a fresh lowering:")
        lines += [f"  {difference}" for difference in _shortened(found.differences)]
    return "\n".join(lines)


def _describe_suspects(first: Suspect, suspects: Sequence[Suspect]) -> list[str]:
    if isnan(first.error):
        error = "it gives no numbers"
    elif first.feed == "weights":
        error = f"its weights are off by {first.error:.1e}, where rounding explains {first.limit:.1e}"
    else:
        allowed = f"rounding explains {first.limit:.1e}" if first.limit else "integers must be exact"
        error = f"off by {first.error:.1e} on the {first.feed}, where {allowed}"
    lines = [
        f"{first.node} ({first.op}, {first.made_by}) is the first node out of line: {error}.",
        f"  It {first.difference}." if first.difference != SAME else f"  {SAME}.",
    ]
    others = [suspect.node for suspect in suspects if suspect is not first]
    if others:
        lines.append(f"  Also out of line: {', '.join(_shortened(others))}.")
    return lines


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:SHOWN], *([f"… and {len(names) - SHOWN} more"] if len(names) > SHOWN else [])]
