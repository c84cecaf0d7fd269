"""Feed edgeformer files with seeded faults, and count how each case ends.

    python tools/reliability/fuzz.py BUNDLES --cases 2000 [--target manifest --target config …] [--output fuzz.json]

BUNDLES is a folder with the bundles tiny-llama, tiny-embed and tiny-translate; those that it lacks are made in it.
Every case writes a folder with one wrong file and opens it as a user would, in a process with limits of time and memory
(`watched.py`). A case must work, or end in an EdgeformerError. What else it does is a fault: a raw traceback, an error
that is no sentence (over 4,000 characters), a hang, too much memory, a crash, or a file that it touches outside of its
folder. Cases are named by target and number: the same number is the same case. With --output, the run goes on behind
the cases that the file has. Exits with 1 if there was a fault.
"""

import importlib
import json
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # the folders of tools/ are packages

from reliability.targets import PRESETS, TARGETS, Target  # noqa: E402
from reliability.watched import FAULTS, USUAL, Limits, Verdict, run_cases  # noqa: E402

KEPT = 20
"""Faults of one target that are kept with their texts; all are counted."""


def fuzz(target: Target, bundles: Path, cases: range, limits: Limits = USUAL) -> dict[str, Any]:
    """Run cases of one target; return counts by kind of verdict, the peak of memory, and the first faults."""
    counts: Counter[str] = Counter()
    faults: dict[str, dict[str, Any]] = {}
    peak = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch) / "case"

        def task(case: int) -> Any:
            shutil.rmtree(folder, ignore_errors=True)
            return folder, target.prepare(bundles, folder, random.Random(f"{target.name}/{case}"))

        for verdict in run_cases(cases, task, limits):
            counts[verdict.kind] += 1
            peak = max(peak, verdict.peak_bytes)
            if verdict.kind in FAULTS:
                _keep(faults, verdict)
    return {"next": cases.stop, "counts": dict(counts), "peak_bytes": peak, "faults": faults}


def _keep(faults: dict[str, dict[str, Any]], verdict: Verdict) -> None:
    """Count a fault under its kind and place."""
    key = f"{verdict.kind} {verdict.detail.partition(': ')[0]}"
    entry = faults.setdefault(key, {"count": 0, "case": verdict.case, "detail": verdict.detail})
    entry["count"] += 1


def merged(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of two results of one target."""
    faults = dict(before["faults"])
    for key, entry in after["faults"].items():
        faults[key] = faults[key] | {"count": faults[key]["count"] + entry["count"]} if key in faults else entry
    return {
        "next": after["next"],
        "counts": dict(Counter(before["counts"]) + Counter(after["counts"])),
        "peak_bytes": max(before["peak_bytes"], after["peak_bytes"]),
        "faults": faults,
    }


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path))
@click.option("--cases", default=300, show_default=True, help="Cases of each target in this run.")
@click.option("--start", type=int, help="Number of the first case. [default: behind those in --output, or 0]")
@click.option("--target", "names", multiple=True, type=click.Choice(list(TARGETS)), help="[default: all]")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file that this run continues and updates.")
@click.option("--seconds", default=10.0, show_default=True, help="Processor time that a case may take.")
def main(
    bundles: Path, cases: int, start: int | None, names: tuple[str, ...], output: Path | None, seconds: float
) -> None:
    """Feed edgeformer files with seeded faults."""
    warnings.simplefilter("ignore")
    for module in (
        "torch",
        "onnx",
        "onnxruntime",
        "edgeformer.export",
        "edgeformer.runtime",
        "edgeformer.models.model_spec",
    ):
        importlib.import_module(module)  # once, and not in every process
    for preset in PRESETS:
        if not (bundles / preset).is_dir():
            from edgeformer.export import export_model

            export_model(preset, bundles / preset, verify=None)
    results: dict[str, Any] = json.loads(output.read_text()) if output and output.is_file() else {}
    ran = {}
    for name in names or TARGETS:
        first = start if start is not None else results.get(name, {"next": 0})["next"]
        ran[name] = fuzz(TARGETS[name], bundles, range(first, first + cases), Limits(seconds=seconds))
        results[name] = merged(results[name], ran[name]) if name in results else ran[name]
        if output:
            output.write_text(json.dumps(results, indent=1) + "\n")
        print_results({name: results[name]})
    print_results(results)
    if any(kind in FAULTS for result in ran.values() for kind in result["counts"]):
        raise SystemExit(1)


def print_results(results: dict[str, Any]) -> None:
    """Print a table of counts, and one line for each place of a fault."""
    table = Table(box=None, pad_edge=False)
    columns = ("ok", "error", *FAULTS)
    for column in ("target", "cases", *columns, "peak MB"):
        table.add_column(column, justify="left" if column == "target" else "right")
    for name, result in results.items():
        counts = [result["counts"].get(kind, 0) for kind in columns]
        table.add_row(name, *(f"{number:,}" for number in (sum(counts), *counts, result["peak_bytes"] // 2**20)))
    console = Console(highlight=False, width=140)
    console.print(table)
    for name, result in results.items():
        for entry in sorted(result["faults"].items(), key=lambda item: -item[1]["count"])[:KEPT]:
            console.print(
                f"{name} {entry[1]['case']}: {entry[1]['count']} x {entry[0]}: {entry[1]['detail']}", markup=False
            )


if __name__ == "__main__":
    main()
