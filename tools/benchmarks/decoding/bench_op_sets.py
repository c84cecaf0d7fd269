"""Measure prefill and decode throughput of one model in every op set and form of cache.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/decoding/bench_op_sets.py /tmp/smollm2-135m

The checkpoint is exported five times: ort, and standard and portable with a dynamic and with a static cache.
edgeformer's runtime runs all of them with the same number of threads, in alternation (interleave.py): prompts, and
single decode steps after a number of tokens. A static cache has the capacity that the longest run needs; --capacity
shows what a larger one costs. All bundles must compute the same logits.

Prints, for each workload and op set, tokens/s (median and range over the rounds) and the speedup of ort.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.runtime import CausalLM, load
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

FORMS: dict[str, dict[str, Any]] = {
    "ort": {},
    "standard, growing": {"ops": "standard", "cache": "dynamic"},
    "standard, static": {"ops": "standard", "cache": "static"},
    "portable, growing": {"ops": "portable", "cache": "dynamic"},
    "portable, static": {"ops": "portable", "cache": "static"},
}
TOLERANCE = 1e-4
"""Allowed max |Δlogit| / max |logit| between op sets after a thousand tokens."""

Speeds = dict[str, float]


def contender(model: CausalLM, prompts: tuple[int, ...], pasts: tuple[int, ...], steps: int, capacity: int) -> Any:
    """Return a function that measures one model: tokens/s of every prompt, and of steps after every past length."""
    tokens = np.random.default_rng(0).integers(0, model.manifest.vocab_size, capacity)

    def run() -> Speeds:
        speeds = {}
        for length in prompts:
            decoder = model.new_decoder(1, capacity)
            start = time.perf_counter()
            decoder.prefill(0, tokens[:length])
            speeds[f"prompt of {length}"] = length / (time.perf_counter() - start)
        for length in pasts:
            decoder = model.new_decoder(1, capacity)
            decoder.prefill(0, tokens[:length])
            decoder.decode_one_token(tokens[length : length + 1])
            start = time.perf_counter()
            for token in tokens[length + 1 : length + 1 + steps]:
                decoder.decode_one_token([token])
            speeds[f"steps behind {length}"] = steps / (time.perf_counter() - start)
        return speeds

    return run


def check_same_logits(models: dict[str, CausalLM], length: int) -> dict[str, float]:
    """Return how far each model's logits are from the first model's. Raises ClickException above TOLERANCE."""
    tokens = np.random.default_rng(1).integers(0, next(iter(models.values())).manifest.vocab_size, length)
    logits = {name: model.forward(tokens) for name, model in models.items()}
    first = next(iter(logits.values()))
    differences = {name: float(np.abs(each - first).max() / np.abs(first).max()) for name, each in logits.items()}
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise click.ClickException(
                f"{name} differs by {difference:.1e} of the largest logit; no speed is reported."
            )
    return differences


def print_report(data: dict[str, Any]) -> None:
    """Print a table: for every workload and op set, its throughput and the speedup of ort."""
    title = "{model}, fp32, {threads} threads, median (range) of {rounds}"
    table = Table(title=title.format(**data), title_justify="left")
    for column in ("", "op set", "tokens/s", "speedup of ort"):
        table.add_column(column, justify="left" if column in ("", "op set") else "right")
    for workload, figures in data["workloads"].items():
        digits = 0 if "prompt" in workload else 1
        for name, speed in figures["tokens_per_second"].items():
            first = workload if name == "ort" else ""
            table.add_row(first, name, cell(speed, digits), cell(figures["ort_over"].get(name), 2))
        table.add_section()
    console = report_console()
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", "prompts", type=click.IntRange(min=1), multiple=True, default=(128, 512), show_default=True)
@click.option("--past", "pasts", type=click.IntRange(min=1), multiple=True, default=(128, 1024), show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Decode steps measured at each past length.",
)
@click.option(
    "--capacity", type=click.IntRange(min=1), help="Tokens of a static cache. [default: what the longest run needs]"
)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads. [default: all usable cores]")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def main(
    checkpoint: Path,
    prompts: tuple[int, ...],
    pasts: tuple[int, ...],
    steps: int,
    capacity: int | None,
    rounds: int,
    threads: int | None,
    file: Path | None,
) -> None:
    """Measure one checkpoint."""
    threads = threads or usable_cores()
    needed = max(*prompts, *(past + 1 + steps for past in pasts))
    capacity = max(needed, capacity or 0)
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, CausalLM] = {}
        for name, options in FORMS.items():
            bundle = export_model(checkpoint, Path(folder) / name.replace(", ", "-"), verify=None, **options).path
            model = load(bundle, provider="cpu", threads=threads)
            assert isinstance(model, CausalLM)
            models[name] = model
        differences = check_same_logits(models, max(prompts))
        turns: dict[str, Callable[[], Speeds]] = {
            name: contender(model, prompts, pasts, steps, capacity) for name, model in models.items()
        }
        runs = run_interleaved(turns, rounds)
    workloads = {}
    for workload in next(iter(runs.values()))[0]:
        speeds, ratios = compare({name: [run[workload] for run in done] for name, done in runs.items()}, "ort")
        workloads[workload] = {"tokens_per_second": speeds, "ort_over": ratios}
    data = {
        "model": checkpoint.name,
        "forms": list(FORMS),
        "capacity": capacity,
        "rounds": rounds,
        "threads": threads,
        "workloads": workloads,
        "largest_difference": differences,
        "environment": environment(),
    }
    if file:
        file.write_text(json.dumps(data, indent=1) + "\n")
    print_report(data)


if __name__ == "__main__":
    main()
