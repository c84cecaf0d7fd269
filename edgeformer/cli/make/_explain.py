"""Text of `edgeformer export --explain`: where each pass and rule fired, and why it skipped other places."""

import re
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # edgeformer.export imports torch
    from edgeformer.export.lower import Lowered
    from edgeformer.export.passes import PassReport


def explain(graph: str, lowered: "Lowered", width: int | None = None) -> str:
    """Return one paragraph per pass and rule, `width` columns wide (default: the terminal)."""
    width = width or shutil.get_terminal_size().columns
    lines = [f"{graph}:"]
    for report in [*lowered.passes, *lowered.rules]:
        lines += _report(report, width)
    return "\n".join(lines)


def _report(report: "PassReport", width: int) -> Iterator[str]:
    places = f"{report.changed} {'place' if report.changed == 1 else 'places'}"
    where = f": {', '.join(summarised(report.places))}" if report.places else ""
    yield from textwrap.wrap(
        f"{report.name} changed {places}{where}" if report.changed else f"{report.name} found nothing to change",
        width, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    reasons = defaultdict(list)
    for place, reason in report.misses:
        reasons[reason].append(place)
    for reason, left in reasons.items():
        yield from textwrap.wrap(
            f"not {', '.join(summarised(left))}: {reason}",
            width, initial_indent="    ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def summarised(places: Iterable[str]) -> list[str]:
    """Return names of nodes with the numbers of blocks merged: `blocks.0–5.attention/MatMul`."""
    blocks: dict[str, list[int]] = {}
    for place in places:
        found = re.search(r"(?<=\bblocks\.)\d+", place)
        pattern = place[: found.start()] + "{}" + place[found.end() :] if found else place
        blocks.setdefault(pattern, []).extend([int(found.group())] if found else [])
    return [pattern.replace("{}", _ranges(numbers)) if numbers else pattern for pattern, numbers in blocks.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """Return 0, 1, 2, 4 as `0–2,4`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
