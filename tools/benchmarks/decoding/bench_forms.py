"""Measure prefill and decode throughput of one model in several forms: its op sets, or precisions of its cache.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/decoding/bench_forms.py op-sets /tmp/smollm2-135m
    python tools/benchmarks/decoding/bench_forms.py caches /tmp/smollm2-135m --precision int8 --past 512 --past 8000

Op sets are ort, and standard and portable with a dynamic and with a static cache; all of them must compute the same
logits. Caches are of float32 and of int8. edgeformer's runtime runs the bundles with the same number of threads, in
alternation (interleave.py): prompts, and single decode steps after a number of tokens. A static cache has the capacity
that the longest run needs; --capacity shows what a larger one costs.

Prints, for each workload and form, tokens/s (median and range over the rounds), and the speedup of the first form.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.manifest.accounting import cache_element_bytes
from edgeformer.manifest.parts import Precision
from edgeformer.runtime import CausalLM, load_causal_lm
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "op-sets": {
        "ort": {},
        "standard, dynamic": {"ops": "standard", "cache": "dynamic"},
        "standard, static": {"ops": "standard", "cache": "static"},
        "portable, dynamic": {"ops": "portable", "cache": "dynamic"},
        "portable, static": {"ops": "portable", "cache": "static"},
    },
    "caches": {"int8": {"cache_precision": "int8"}, "float32": {}},
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


def table(data: dict[str, Any]) -> Table:
    """Return a table: for every workload and form, its throughput and the speedup of the first form over it."""
    ours = data["forms"][0]
    title = "{model}, {precision}, {threads} threads, median (range) of {rounds}"
    found = Table(title=title.format(**data), title_justify="left")
    for column in ("", "form", "bytes per token", "tokens/s", f"speedup of {ours}"):
        found.add_column(column, justify="left" if column in ("", "form") else "right")
    for workload, figures in data["workloads"].items():
        digits = 0 if "prompt" in workload else 1
        for name, speed in figures["tokens_per_second"].items():
            first, size = workload if name == ours else "", f"{data['cache_bytes_per_token'][name]:,}"
            found.add_row(first, name, size, cell(speed, digits), cell(figures["speedup_over"].get(name), 2))
        found.add_section()
    return found


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("forms", type=click.Choice(list(FORMS)))
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--prompt", "prompts", type=click.IntRange(min=1), multiple=True, default=(128, 512), show_default=True)
@click.option("--past", "pasts", type=click.IntRange(min=1), multiple=True, default=(128, 1024), show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=24, show_default=True, help="Steps after each past.")
@click.option(
    "--capacity", type=click.IntRange(min=1), help="Tokens of a static cache. [default: what the longest run needs]"
)
@measurement(rounds=7)
def main(
    forms: str,
    checkpoint: Path,
    precision: Precision,
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
        for name, options in FORMS[forms].items():
            place = Path(folder) / name.replace(", ", "-")
            bundle = export_model(checkpoint, place, precision=precision, verify=None, **options).path
            models[name] = load_causal_lm(bundle, "cpu", threads)
        differences = check_same_logits(models, max(prompts)) if forms == "op-sets" else None
        turns: dict[str, Callable[[], Speeds]] = {
            name: contender(model, prompts, pasts, steps, capacity) for name, model in models.items()
        }
        runs = run_interleaved(turns, rounds)
    workloads = {}
    for workload in next(iter(runs.values()))[0]:
        measured = {name: [run[workload] for run in done] for name, done in runs.items()}
        speeds, ratios = compare(measured, next(iter(models)))
        workloads[workload] = {"tokens_per_second": speeds, "speedup_over": ratios}
    data = {
        "model": checkpoint.name,
        "precision": precision,
        "forms": list(models),
        "cache_bytes_per_token": {
            name: model.manifest.cache.elements_per_token * cache_element_bytes(model.manifest).tokens
            for name, model in models.items()
        },
        "capacity": capacity,
        "rounds": rounds,
        "threads": threads,
        "workloads": workloads,
        "largest_difference": differences,
        "environment": environment(),
    }
    publish(data, file, table(data))


if __name__ == "__main__":
    main()
