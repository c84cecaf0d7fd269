"""Measure what edgeformer's own kernels gain over onnxruntime's in a decoder bundle.

    python tools/benchmarks/bench_kernels.py /tmp/smollm2-135m-int4

Three sessions of the same graph continue the same prompt, with the same number of threads, in alternation
(interleave.py):

- functions: without the library, so that the bodies of the graph's functions run;
- kernels: with the library, on the session's threads (EDGEFORMER_KERNELS=session);
- team: with the library on a team of threads of its own, and one thread for onnxruntime (EDGEFORMER_KERNELS=team).

An end-of-text token never ends a run. Each has its own tokens, since kernels round otherwise. Prints ms of the prompt
and of a decode step, GB/s of weights that a step reads, and the speedup over the functions within a round.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from edgeformer.runtime import CausalLM, load
from edgeformer.runtime.kernels import SWITCH, find_library
from edgeformer.runtime.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.bench_decode import Run, edgeformer_loop
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

SWITCHES = {"functions": "0", "kernels": "session", "team": "team"}
"""The value of EDGEFORMER_KERNELS with which each contender is loaded."""


def open_contenders(bundle: Path, threads: int) -> dict[str, CausalLM]:
    """Load the bundle once for each contender. Raises ClickException where edgeformer-kernels is not installed."""
    library = find_library()
    if isinstance(library, str):
        raise click.ClickException(f"{library}; install it with: pip install ./kernels")
    before, models = os.environ.get(SWITCH), {}
    try:
        for name, value in SWITCHES.items():
            os.environ[SWITCH] = value
            model = load(bundle, provider="cpu", threads=threads)
            if not isinstance(model, CausalLM):
                raise click.ClickException(f"{bundle} is no decoder-only model.")
            models[name] = model
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before
    return models


def report(runs: dict[str, list[Run]], weight_bytes: int) -> dict[str, Any]:
    """Return seconds, rates, and speedups over the functions within a round, as plain data.

    weight_bytes: what a decode step reads.
    """
    data: dict[str, Any] = {name: {} for name in runs}
    phases = {
        "prefill": lambda run: run.prefill_seconds,
        "decode": lambda run: run.decode_seconds / (len(run.tokens) - 1),
    }
    for phase, seconds in phases.items():
        measured = {name: [seconds(run) for run in done] for name, done in runs.items()}
        times, ratios = compare(measured, "functions")
        for name, spread in times.items():
            data[name] |= {f"{phase}_seconds": spread, f"{phase}_speedup": ratios.get(name)}
    for figures in data.values():
        figures["bytes_per_second"] = weight_bytes / figures["decode_seconds"]["median"]
    return data


def print_report(data: dict[str, Any]) -> None:
    """Print the report as a table."""
    title = (
        "{bundle}, {precision}: {prompt_tokens} + {new_tokens} tokens, {threads} threads, median (range) of {rounds}"
    )
    table = Table(title=title.format(**data), title_justify="left", caption="speedup: over the functions")
    for column in ("", "prefill ms", "speedup", "ms a step", "speedup", "GB/s"):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in data["contenders"].items():
        times = [{k: 1000 * v for k, v in figures[f"{phase}_seconds"].items()} for phase in ("prefill", "decode")]
        table.add_row(
            name,
            cell(times[0], 1),
            cell(figures["prefill_speedup"], 2),
            cell(times[1], 2),
            cell(figures["decode_speedup"], 2),
            f"{figures['bytes_per_second'] * 1e-9:.1f}",
        )
    console = report_console()
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--new", type=click.IntRange(min=2), default=32, show_default=True, help="Tokens to generate.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each contender. [default: all usable cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def main(bundle: Path, prompt: int, new: int, rounds: int, threads: int | None, as_json: bool) -> None:
    """Measure one bundle."""
    threads = threads or usable_cores()
    models = open_contenders(bundle, threads)
    manifest = models["kernels"].manifest
    ids = np.random.default_rng(0).integers(0, manifest.vocab_size, prompt).tolist()
    runs = run_interleaved({name: partial(edgeformer_loop(model), ids, new) for name, model in models.items()}, rounds)
    data = {
        "bundle": manifest.name,
        "precision": manifest.precision,
        "prompt_tokens": prompt,
        "new_tokens": new,
        "rounds": rounds,
        "threads": threads,
        "contenders": report(runs, (bundle / f"{manifest.graph}_data").stat().st_size),
        "environment": environment(),
    }
    if as_json:
        click.echo(json.dumps(data, indent=1))
    else:
        print_report(data)


if __name__ == "__main__":
    main()
