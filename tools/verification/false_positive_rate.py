"""Measure the false-positive rate of verification: how often it rejects a correct graph.

    python tools/verification/false_positive_rate.py --models 200 --kind all

Draws random small models over every block (random_models.py), exports each, verifies it in quick mode, and prints the
number of rejected models, their configs, and figure / limit over all runs (median, 99th percentile, largest). Every
second model of a kind is fp16.
"""

import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from edgeformer import __version__
from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.config import ModelConfig
from edgeformer.documents import schema
from edgeformer.export.importers.opened_model import OpenedModel, Origin
from edgeformer.export.parity import Report, verify_graph
from edgeformer.export.parity.tolerances import LIMITS
from edgeformer.export.pipeline import ExportResult, run_export
from edgeformer.export.plan import make_plan
from edgeformer.export.progress import no_progress
from edgeformer.manifest.parts import Precision, Provenance, SpecialTokens
from edgeformer.models.model_spec import ModelSpec, model_spec_of
from edgeformer.options.export import ExportOptions, VerifyMode

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from verification.random_models import RANDOM_MODELS

PRECISIONS: tuple[Precision, Precision] = ("fp32", "fp16")


class Scaled(Mapping[str, Tensor]):
    """Weights with their matrices multiplied by a gain: some models amplify rounding more than others."""

    def __init__(self, weights: Mapping[str, Tensor], gain: float):
        self._weights, self._gain = weights, gain

    def __getitem__(self, name: str) -> Tensor:
        value = self._weights[name]
        return value * self._gain if value.dim() > 1 else value

    def __iter__(self) -> Any:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def verify_one(
    config: ModelConfig, precision: Precision, seed: int, gain: float = 1.0, mode: VerifyMode = "quick"
) -> Report:
    """Export one model of random weights to a temporary folder and verify it."""
    weights = Scaled(RandomWeights(config, seed), gain)
    model_spec = model_spec_of(config)
    with tempfile.TemporaryDirectory() as parent:
        bundle = export_random(model_spec, weights, precision, Path(parent))
        return verify_graph(bundle.path, bundle.manifest, model_spec, weights, mode=mode)


def export_random(
    model_spec: ModelSpec, weights: Mapping[str, Tensor], precision: Precision, parent: Path
) -> ExportResult:
    """Export a model to a bundle in `parent` without verification."""
    tokens = SpecialTokens(eos=(), bos=None, pad=None)
    origin = Origin(name="random", provenance=Provenance(source="random"), tokens=tokens)
    opened = OpenedModel(model_spec=model_spec, weights=weights, origin=origin)
    options = ExportOptions(precision=precision, verify=None)
    plan = make_plan(options, model_spec.config)
    return run_export(opened, plan, options, parent / "bundle", no_progress)


def figure_of(check: str) -> str:
    """Return the row of LIMITS that a check is held to."""
    last = check.split(": ")[-1]
    return last if last in LIMITS else "difference"  # a check of two ways to compute the same vectors


@click.command(help=__doc__)
@click.option("--models", default=200, show_default=True, help="Models of each kind.")
@click.option("--kind", type=click.Choice([*RANDOM_MODELS, "all"]), default="decoder", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--full", is_flag=True, help="Verify fully instead of quickly.")
@click.option("--json", "as_json", is_flag=True)
def main(models: int, kind: str, seed: int, full: bool, as_json: bool) -> None:
    """Draw, export, verify, count."""
    torch.manual_seed(seed)
    start = time.perf_counter()
    kinds = list(RANDOM_MODELS) if kind == "all" else [kind]
    results = {each: sweep(each, models, seed, "full" if full else "quick") for each in kinds}
    if as_json:
        print(json.dumps({"edgeformer": __version__, "models": models, "seed": seed, "kinds": results}, indent=1))
        return
    console = Console()
    for each, result in results.items():
        table = Table("precision", "figure", "median", "99 %", "largest", title=f"{each}: figure / limit, all runs")
        for row in result["shares"]:
            table.add_row(*row)
        console.print(table)
        for entry in result["false_positives"]:
            console.print_json(data=entry)
        overflows, count = result["overflows"], len(result["false_positives"])
        console.print(f"{len(overflows)} models overflow in eager PyTorch and do not count: {overflows}")
        console.print(f"{count} of {models - len(overflows)} correct graphs were rejected")
    console.print(f"in {time.perf_counter() - start:.0f} s")


def sweep(kind: str, models: int, seed: int, mode: VerifyMode) -> dict[str, Any]:
    """Verify models of one kind. Return the rejected ones, those that overflow, and how figures compare with limits."""
    draw = random.Random(seed)
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    rejected, overflows = [], []
    for index in track(range(models), kind, console=Console(stderr=True)):
        config, precision = RANDOM_MODELS[kind](draw), PRECISIONS[index % 2]
        gain = draw.choice([0.5, 1.0, 1.0, 1.5])
        report = verify_one(config, precision, index, gain, mode)
        if any(check.eager is not None and not np.isfinite(check.eager) for check in report.checks):
            overflows.append(index)  # eager PyTorch itself overflows in this precision
            continue
        for check in report.checks:
            if check.limit > 0 and not check.at_least:
                shares[precision, figure_of(check.name)].append(check.value / check.limit)
        if not report.passed:
            failures = [f"{check.name} {check.value:.3g} > {check.limit:.3g}" for check in report.failures()]
            entry = {"model": index, "precision": precision, "gain": gain, "failures": failures}
            rejected.append(entry | {"config": schema.to_json(config)})
    rows = [
        (precision, figure, f"{np.median(values):.2f}", f"{np.quantile(values, 0.99):.2f}", f"{max(values):.2f}")
        for (precision, figure), values in sorted(shares.items())
    ]
    return {"false_positives": rejected, "overflows": overflows, "shares": rows}


if __name__ == "__main__":
    main()
