"""Write the tables of docs/reference/benchmarks.md, and the one of README.md, from docs/reference/benchmarks/*.json.

    python tools/benchmarks/compare_peers.py CHECKPOINT --json docs/reference/benchmarks/DATE-MACHINE-MODEL.json
    python tools/benchmarks/page.py [--write]

Each file is one run, as a benchmark's --json writes it: `tool`, `environment` (date, processor, versions), `rounds`,
and `results` (compare_peers.py) or `tables` (columns and rows of others). People may add a `title` and a `note`. A
table stands between `<!-- benchmarks: TOOL -->` and `<!-- end -->`, the newest run first.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.peers.registry import OURS

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs/reference/benchmarks"
PAGES = (ROOT / "docs/reference/benchmarks.md", ROOT / "README.md")
README_MODELS, README_PROMPTS, README_LONG = ("TinyLlama-1.1B", "SmolLM2-135M"), (128, 512), 4096
MARKED = re.compile(r"(<!-- benchmarks: (?P<name>[^\n]+?) -->\n).*?(<!-- end -->\n)", re.S)

Run = Mapping[str, Any]


def read_runs(folder: Path) -> list[Run]:
    """Return the runs of a folder: the newest first, those without a date last, and each day's by name."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return sorted(runs, key=lambda run: run["environment"].get("date") or "", reverse=True)


def spread(figures: Mapping[str, float] | None, digits: int | None = None) -> str:
    """Format a median with its range, if it has one. Without `digits`, integers stay and others get one below 250."""
    if not figures:
        return ""

    def number(value: float) -> str:
        if digits is None and isinstance(value, int):
            return f"{value:,}"
        return f"{value:,.{digits if digits is not None else 1 if value < 250 else 0}f}"

    text = number(figures["median"])
    return f"{text} ({number(figures['low'])}–{number(figures['high'])})" if "low" in figures else text


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> list[str]:
    """Return a table whose first column is text."""
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return [*lines, *(f"| {' | '.join(cell or '' for cell in row)} |" for row in rows), ""]


def systems_of(run: Run) -> dict[str, str]:
    """Return edgeformer and the peers of a run, with their versions as readers see them."""
    names = {"edgeformer": "edgeformer"}
    for name, facts in run["peers"].items():
        own = name.lower().replace(" ", "-")
        versions = [
            f" {version}" if package == own else f" ({package} {version})"
            for package, version in facts["versions"].items()
        ]
        names[name] = name + "".join(versions)
    return names


def peer_tables(run: Run) -> list[str]:
    """Return a table for each precision of a run of compare_peers.py."""
    lines = []
    for precision, grouped in groupby(run["results"], key=lambda result: result["precision"]):
        results = list(grouped)
        columns = [f"{run['checkpoint']}, {precision}"]
        for word in ("prefill", "decode after"):
            columns += [name for result in results for name in (f"{word} {result['prompt_tokens']:,}", "ratio")]
        rows = []
        for system, label in systems_of(run).items():
            row = [label]
            for figure in ("prefill", "decode"):
                for result in results:
                    row.append(spread(result["figures"].get(system, {}).get(figure)))
                    row.append(spread(result["edgeformer_over"].get(system, {}).get(figure), 2))
            rows.append(row)
        lines += markdown(columns, rows)
    return lines


def heading(run: Run) -> str:
    """Return the line above the tables of a run: when, on what, with which versions, how often."""
    environment = dict(run["environment"])
    date, processor = environment.pop("date", None), environment.pop("processor")
    versions = ", ".join(f"{package} {version}" for package, version in environment.items() if package != "system")
    facts = [run.get("title"), processor, versions]
    return f"**{date or 'Date not recorded'}**: " + "; ".join(fact for fact in facts if fact) + "."


def remark(run: Run) -> str:
    """Return the model's and the rounds' line of a run, with its note."""
    new, rounds = run.get("new_tokens"), run.get("rounds")
    facts = ", ".join([*([f"{new} new tokens"] if new else []), *([f"{rounds} rounds"] if rounds else [])])
    return " ".join(([f"{facts[0].upper()}{facts[1:]}."] if facts else []) + ([run["note"]] if run.get("note") else []))


def section(tool: str, runs: Sequence[Run]) -> str:
    """Return the tables of all runs of a tool. Neighbours with the same heading, or remark, share it."""
    lines = []
    for title, together in groupby((run for run in runs if run["tool"] == tool), key=heading):
        lines += [title, ""]
        for said, alike in groupby(together, key=remark):
            lines += [said, ""] if said else []
            for run in alike:
                if "results" in run:
                    lines += peer_tables(run)
                for table in run.get("tables", []):
                    lines += markdown(table["columns"], table["rows"])
    return "\n".join(lines)


def _newest(runs: Sequence[Run], model: str, prompts: Sequence[int]) -> Run:
    """Return the newest int4 run of a model with these prompts on a quiet machine; an empty one without one.

    Of runs of one day, it is that with the most peers.
    """
    found: Run = {}
    for run in runs:
        if run["tool"] != "compare_peers" or model.lower() not in run["checkpoint"].lower():
            continue
        if run.get("busy_processes"):
            continue
        if {r["prompt_tokens"] for r in run["results"] if r["precision"] == "int4"}.issuperset(prompts):
            same_day = found and run["environment"]["date"] == found["environment"]["date"]
            if not found or (same_day and len(run["peers"]) > len(found["peers"])):
                found = run
    return found


def readme(runs: Sequence[Run]) -> str:
    """Return README's table: edgeformer's median ratios in the newest int4 run of each model that has README_PROMPTS.

    Of a model with runs that also have prompts of README_LONG tokens, it is the newest of these.
    """
    newest = [
        _newest(runs, model, (*README_PROMPTS, README_LONG)) or _newest(runs, model, README_PROMPTS)
        for model in README_MODELS
    ]
    peers = [name for name in newest[0]["peers"] if name != OURS]
    rows = []
    for model, run in zip(README_MODELS, newest, strict=True):
        shown = (*README_PROMPTS, README_LONG)
        results = [r for r in run["results"] if r["precision"] == "int4" and r["prompt_tokens"] in shown]
        for figure in ("prefill", "decode"):
            found = [[result["edgeformer_over"].get(peer, {}).get(figure) for result in results] for peer in peers]
            cells = [", ".join(f"{each['median']:.2f}" for each in row if each) for row in found]
            rows.append([f"{model} geometry, {figure}", *cells])
    dates: dict[str, set[str]] = {}
    for run in newest:
        where = run["environment"]["processor"] + (f", {run['title']}" if run.get("title") else "")
        dates.setdefault(where, set()).add(run["environment"]["date"] or "date not recorded")
    said = "; ".join(f"{', '.join(sorted(days))}: {where}" for where, days in dates.items())
    return "\n".join([f"{said}.", "", *markdown(["", *peers], rows)])


def with_tables(text: str, runs: Sequence[Run]) -> str:
    """Return a page with the marked tables written again."""

    def table(found: re.Match[str]) -> str:
        name = found["name"]
        return f"{found[1]}\n{readme(runs) if name == 'README' else section(name, runs)}\n{found[3]}"

    return MARKED.sub(table, text)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--write", is_flag=True, help="Write the pages. [default: fail if they are not up to date]")
def main(write: bool) -> None:
    """Write the tables, or compare them."""
    runs = read_runs(RUNS)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        written = with_tables(text, runs)
        if write:
            page.write_text(written, encoding="utf-8")
        elif written != text:
            sys.exit(
                f"{page.relative_to(ROOT)} is not what its runs say. Write it: python tools/benchmarks/page.py --write"
            )


if __name__ == "__main__":
    main()
