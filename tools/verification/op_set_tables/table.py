"""Make the table of blocks: one row per block, one column per group of lowerings."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgeformer.contract.tensors import CacheForm
from edgeformer.export.lower import LoweringOptions
from edgeformer.manifest.parts import Precision
from verification.op_set_tables.blocks import BLOCKS, Block
from verification.op_set_tables.finding import LEGEND, Found, find

FORMS: tuple[CacheForm, ...] = ("dynamic", "static")

COLUMNS: dict[str, dict[str, LoweringOptions]] = {
    "`ort`, CPU": {"": LoweringOptions()},
    "`ort`, CUDA": {"": LoweringOptions(provider="cuda")},
    "`standard`, dynamic": {"": LoweringOptions(ops="standard", cache_form="dynamic")},
    "`standard`, static": {"": LoweringOptions(ops="standard", cache_form="static")},
    "`portable`": {form: LoweringOptions(ops="portable", cache_form=form) for form in FORMS},
    "`portable --functions`": {
        form: LoweringOptions(ops="portable", cache_form=form, functions=True) for form in FORMS
    },
}
"""Lowerings by column, and what distinguishes them within it."""

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")


@dataclass
class Footnotes:
    """Numbers of reasons, in the order of their first use."""

    numbers: dict[str, int] = field(default_factory=dict)

    def mark(self, reason: str) -> str:
        """Return the number of a reason; equal reasons share one."""
        return f"[{self.numbers.setdefault(reason, len(self.numbers) + 1)}]"

    def lines(self) -> list[str]:
        """Return all reasons as a numbered list."""
        return [f"{number}. {reason[0].upper()}{reason[1:]}" for reason, number in self.numbers.items()]


def block_table(keys: Sequence[str], progress: Callable[[str], None] = lambda key: None) -> str:
    """Return the table of these blocks, with its footnotes."""
    footnotes = Footnotes()
    lines = [_row(["", *COLUMNS]), _row(["---"] * (len(COLUMNS) + 1))]
    for key in keys:
        progress(key)
        lines.append(_row([BLOCKS[key].title, *(_cell(BLOCKS[key], each, footnotes) for each in COLUMNS.values())]))
    legend = " · ".join(f"{mark} {meaning}" for mark, meaning in LEGEND.items())
    return "\n".join([legend, "", *lines, "", *footnotes.lines()])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _cell(block: Block, lowerings: Mapping[str, LoweringOptions], footnotes: Footnotes) -> str:
    """Return what all lowerings of a column do in all precisions, once if it is the same."""
    by_found: dict[Found, list[tuple[str, str]]] = {}
    for form, lowering in lowerings.items():
        for precision in PRECISIONS:
            by_found.setdefault(find(block, precision, lowering), []).append((form, precision))
    if len(by_found) == 1:
        return _said(next(iter(by_found)), footnotes)
    return "<br>".join(f"{_common(cases, lowerings)}: {_said(found, footnotes)}" for found, cases in by_found.items())


def _common(cases: Sequence[tuple[str, str]], lowerings: Mapping[str, LoweringOptions]) -> str:
    """Return what distinguishes these cases of a column: a precision, a form of the cache, or both."""
    forms, precisions = (list(dict.fromkeys(case[index] for case in cases)) for index in (0, 1))
    if len(forms) == len(lowerings) and len(precisions) == 1:
        return precisions[0]
    if len(forms) == 1 and len(precisions) == len(PRECISIONS):
        return forms[0]
    return ", ".join(" ".join(case).strip() for case in cases)


def _said(found: Found, footnotes: Footnotes) -> str:
    ops = [", ".join(f"`{op}`" for op in found.ops)] if found.ops else []
    return " ".join([found.mark, *ops, *map(footnotes.mark, found.reasons)])


def expanded(table: str) -> dict[str, str]:
    """Return each row of a table by its title, with reasons instead of their numbers, to compare tables."""
    reasons = dict(re.findall(r"^(\d+)\. (.+)$", table, re.MULTILINE))
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if not line.startswith("| ---")]
    return {
        title: "\n".join(re.sub(r"\[(\d+)\]", lambda found: f"[{reasons.get(found[1])}]", cell) for cell in cells)
        for title, *cells in rows
    }
