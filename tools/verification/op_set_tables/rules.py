"""List passes and rules as their module docstrings describe them."""

import inspect
import re
import sys
from collections.abc import Sequence

from edgeformer.export import passes
from edgeformer.export.graph.function_bodies import decompose_all
from edgeformer.export.lower import LoweringOptions, lower_captured, ort, portable, standard
from edgeformer.export.lower.functions import keep_as_functions
from edgeformer.export.passes import PassReport, canonicalize
from verification.op_set_tables.blocks import PLAIN
from verification.op_set_tables.lowering import captured


def rule_lists() -> str:
    """Return the passes and rules of each op set, in their order."""
    spec, canonical = captured(PLAIN, "fp32")
    sections: dict[str, list[str]] = {
        "Before the passes, for modules that were not written for our ops": _passes(canonicalize(canonical.clone()))
    }
    for lowering, op_set in (
        (LoweringOptions(), ort),
        (LoweringOptions(ops="standard", cache_form="dynamic"), standard),
        (LoweringOptions(ops="portable", cache_form="dynamic"), portable),
    ):
        done = lower_captured(canonical.clone(), spec, lowering)
        rules = zip(op_set.RULES, done.rules, strict=False)  # strict=False: a report that all op sets share comes last
        sections[f"`{lowering.ops}`"] = [
            *_passes(done.passes),
            *(_described(f"rule `{report.name}`", rule.__module__) for rule, report in rules),
        ]
    sections["Behind the rules, for the canonical ops that are left"] = [
        _described("`decompose`", decompose_all.__module__),
        _described("`functions`, with `--functions`", keep_as_functions.__module__),
    ]
    return "\n\n".join("\n".join([f"### {title}", "", *lines]) for title, lines in sections.items())


def _passes(reports: Sequence[PassReport]) -> list[str]:
    return [_described(f"pass `{each.name}`", f"{passes.__name__}.{each.name}") for each in reports]


def _described(what: str, module: str) -> str:
    """Return a list item: the first paragraph of a module's docstring, and its sentences from `requires` on."""
    doc = inspect.cleandoc(sys.modules[module].__doc__ or "")
    paragraphs = [" ".join(each.split()) for each in doc.split("\n\n") if not each.startswith("    ")]
    before, requirements = [], []
    for paragraph in paragraphs:
        sentences = re.split(r"(?<=\.) (?=[A-Z])", paragraph)
        first = next((index for index, each in enumerate(sentences) if "require" in each.lower()), len(sentences))
        before.append(" ".join(sentences[:first]))
        requirements += sentences[first:]
    return f"- {what}: {before[0]}" + (f" *{' '.join(requirements)}*" if requirements else "")
