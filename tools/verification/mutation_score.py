"""Measure the mutation score of verification: which planted faults it finds, and whether it locates them.

    python tools/verification/mutation_score.py [--full]

Each fault of tests/export/faults.py is planted into a small Llama with an untied head and into one with a tied head.
Each faulty graph is verified against the true model and, if it fails, the first wrong node is located. Prints a
Markdown table and the number of faults found and located; exits with 1 if a fault passed or was located at the wrong
node.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from edgeformer.checkpoints.weights import RandomWeights, Weights
from edgeformer.errors import BundleError
from edgeformer.export.parity import verify_graph
from edgeformer.export.parity.locate.locator import locate
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "export")]  # the folders of tools/ are packages

from faults import FAULTS, Fault, mutable_config, plant  # noqa: E402

from verification.false_positive_rate import export_random  # noqa: E402


def clean_bundle(parent: Path, *, tied: bool) -> tuple[Path, Manifest, Weights]:
    """Export a small model without verification."""
    config = mutable_config(tie_word_embeddings=tied)
    weights = RandomWeights(config, seed=0)
    bundle = export_random(model_spec_of(config), weights, "fp32", parent)
    return bundle.path, bundle.manifest, weights


def judge(fault: Fault, clean: Path, manifest: Manifest, weights: Weights, mode: Any) -> dict[str, str | bool]:
    """Plant one fault, verify the graph and locate the fault."""
    model_spec = model_spec_of(manifest.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "faulty"
        plant(fault, clean, folder, manifest, weights)
        try:
            report = verify_graph(folder, manifest, model_spec, weights, mode=mode)
            runs = sorted({check.name.split(":")[0] for check in report.failures()})
        except BundleError:
            runs = ["loading"]
        found = locate(folder, manifest, model_spec, weights) if runs else None
        first = found.first.node if found and found.first else ""
        expected = fault.expected([suspect.node for suspect in found.suspects] if found else [], manifest.model)
        return {
            "fault": fault.name, "kind": fault.kind, "head": "tied" if manifest.model.tied_head else "free",
            "killed": bool(runs), "failing": ", ".join(runs), "located": first, "right": first in expected,
        }  # fmt: skip


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help="Verify fully instead of quickly.")
def main(full: bool) -> None:
    """Plant every fault and print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for tied in (False, True):
            clean, manifest, weights = clean_bundle(Path(name) / ("tied" if tied else "free"), tied=tied)
            assert verify_graph(clean, manifest, model_spec_of(manifest.model), weights).passed
            fitting = [fault for fault in FAULTS if fault.fits(manifest.model)]
            for fault in track(fitting, console=Console(stderr=True)):
                rows.append(judge(fault, clean, manifest, weights, "full" if full else "quick"))
    print("| fault | in | head | found by | located at | |\n|---|---|---|---|---|---|")
    for row in rows:
        verdict = "ok" if row["killed"] and row["right"] else "MISSED" if not row["killed"] else "WRONG NODE"
        print(f"| {row['fault']} | {row['kind']} | {row['head']} | {row['failing']} | {row['located']} | {verdict} |")
    killed, right = sum(bool(row["killed"]) for row in rows), sum(bool(row["right"]) for row in rows)
    print(f"\n{len(FAULTS)} faults, {len(rows)} graphs: {killed} found, {right} located at the right node")
    raise SystemExit(0 if killed == right == len(rows) else 1)


if __name__ == "__main__":
    main()
