"""Measure prefill and decode throughput over an int8 KV cache and over a float32 one, of the same model.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/decoding/bench_cache.py /tmp/smollm2-135m --precision int8

The checkpoint is exported twice. edgeformer's runtime runs both with the same number of threads, in alternation
(interleave.py): one prompt, and single decode steps at several context lengths. Caches are filled with a constant
instead of by a prefill, because the time of a step does not depend on the cached values.

Prints, for each workload, tokens/s over both caches (median and range over the rounds), the speedup of int8 over
float32, and the bytes per token of each cache.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.manifest.accounting import cache_element_bytes
from edgeformer.manifest.parts import Precision
from edgeformer.runtime import CausalLM, load
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

FORMS: dict[str, dict[str, Any]] = {"float32": {}, "int8": {"cache_precision": "int8"}}

Speeds = dict[str, float]


def measure(model: CausalLM, prompt: int, pasts: tuple[int, ...], steps: int) -> Speeds:
    """Return tokens/s of a prompt, and of decode steps after each past length."""
    tokens = np.random.default_rng(0).integers(0, model.manifest.vocab_size, max(prompt, steps + 1))
    decoder = model.new_decoder(1, prompt)
    start = time.perf_counter()
    decoder.prefill(0, tokens[:prompt])
    speeds = {f"prompt of {prompt}": prompt / (time.perf_counter() - start)}
    for length in pasts:
        decoder = model.new_decoder(1, length + steps + 1)
        decoder.cache.fill(1)
        decoder.lengths[:] = length
        decoder.decode_one_token(tokens[:1])
        start = time.perf_counter()
        for token in tokens[1 : steps + 1]:
            decoder.decode_one_token([token])
        speeds[f"steps behind {length}"] = steps / (time.perf_counter() - start)
    return speeds


def bytes_per_token(model: CausalLM) -> int:
    """Return the bytes that one token takes in the cache."""
    return model.manifest.cache.elements_per_token * cache_element_bytes(model.manifest)


def print_report(data: dict[str, Any]) -> None:
    """Print a table: for every workload, the throughput over each cache and the speedup of int8."""
    title = "{model}, {precision}, {threads} threads, median (range) of {rounds}"
    table = Table(title=title.format(**data), title_justify="left")
    names = [f"{name}, {size:,} bytes per token" for name, size in data["bytes_per_token"].items()]
    for column in ("tokens/s", *names, "speedup of int8"):
        table.add_column(column, justify="left" if column == "tokens/s" else "right")
    for workload, figures in data["workloads"].items():
        speeds = [cell(speed, 1) for speed in figures["tokens_per_second"].values()]
        table.add_row(workload, *speeds, cell(figures["int8_over"]["float32"], 2))
    console = report_console()
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--prompt", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens of the prompt.")
@click.option(
    "--past", "pasts", type=click.IntRange(min=1), multiple=True, default=(512, 2048, 8000), show_default=True
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Decode steps measured at each past length.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads. [default: all usable cores]")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def main(
    checkpoint: Path,
    precision: Precision,
    prompt: int,
    pasts: tuple[int, ...],
    steps: int,
    rounds: int,
    threads: int | None,
    file: Path | None,
) -> None:
    """Measure one checkpoint."""
    threads = threads or usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, CausalLM] = {}
        for name, options in FORMS.items():
            bundle = export_model(checkpoint, Path(folder) / name, precision=precision, verify=None, **options).path
            model = load(bundle, provider="cpu", threads=threads)
            assert isinstance(model, CausalLM)
            models[name] = model
        runs_of: dict[str, Callable[[], Speeds]] = {
            name: partial(measure, model, prompt, pasts, steps) for name, model in models.items()
        }
        runs = run_interleaved(runs_of, rounds)
    workloads = {}
    for workload in next(iter(runs.values()))[0]:
        speeds, ratios = compare({name: [run[workload] for run in done] for name, done in runs.items()}, "int8")
        workloads[workload] = {"tokens_per_second": speeds, "int8_over": ratios}
    data = {
        "model": checkpoint.name,
        "precision": precision,
        "bytes_per_token": {name: bytes_per_token(model) for name, model in models.items()},
        "rounds": rounds,
        "threads": threads,
        "workloads": workloads,
        "environment": environment(),
    }
    if file:
        file.write_text(json.dumps(data, indent=1) + "\n")
    print_report(data)


if __name__ == "__main__":
    main()
