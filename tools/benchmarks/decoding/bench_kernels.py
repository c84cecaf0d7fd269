"""Measure what edgeformer's own kernels gain over onnxruntime's in a decoder bundle.

    python tools/benchmarks/decoding/bench_kernels.py /tmp/smollm2-135m-int4

Three sessions of the same graph continue the same prompt, with the same number of threads, in alternation
(interleave.py):

- functions: without the library, so that the bodies of the graph's functions run;
- kernels: with the library, on the session's threads (EDGEFORMER_KERNELS=session);
- team: with the library on a team of threads of its own, and one thread for onnxruntime (EDGEFORMER_KERNELS=team).

An end-of-text token never ends a run. Each has its own tokens, since kernels round otherwise. Prints ms of the prompt
and of a decode step, the speedup over the functions within a round, and GB/s of weights that a step reads. Each round
also reads plain memory with the same number of threads (bandwidth.py), and a step's rate is compared with that.
"""

import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import onnx
from rich.table import Table

from edgeformer.runtime import CausalLM, load
from edgeformer.runtime.sessions.kernels import SWITCH, find_library
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.bandwidth import MemoryReader
from benchmarks.command import measurement, publish
from benchmarks.decoding.bench_decode import Run, edgeformer_loop
from benchmarks.environment import environment
from benchmarks.interleave import Spread, cell, compare, run_interleaved

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


def step_bytes(graph: Path) -> int:
    """Return the bytes of weights that a decode step reads: all but those of tables, of which it takes one row."""
    model = onnx.load(graph, load_external_data=False)
    weights = {weight.name: weight for weight in model.graph.initializer}
    tables = {name for node in model.graph.node if node.op_type.startswith("Gather") for name in node.input}
    others = {name for node in model.graph.node if not node.op_type.startswith("Gather") for name in node.input}
    return sum(_stored_bytes(weights[name]) for name in weights if name in others or name not in tables)


def _stored_bytes(weight: onnx.TensorProto) -> int:
    places = {entry.key: entry.value for entry in weight.external_data}
    return int(places["length"]) if "length" in places else len(weight.raw_data)


def report(runs: dict[str, list[Run]], weight_bytes: int, bandwidths: list[float]) -> dict[str, Any]:
    """Return seconds, rates, and speedups over the functions within a round, as plain data.

    weight_bytes: what a decode step reads. bandwidths: bytes per second of plain memory, of each round.
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
    for name, done in runs.items():
        rates = [weight_bytes / phases["decode"](run) for run in done]
        fractions = [rate / plain for rate, plain in zip(rates, bandwidths, strict=True)]
        data[name] |= {
            "bytes_per_second": median(rates),
            "fraction_of_bandwidth": asdict(Spread.of(fractions)),
        }
    return data


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as a table."""
    title = (
        "{bundle}, {precision}: {prompt_tokens} + {new_tokens} tokens, {threads} threads, median (range) of {rounds}"
    )
    table = Table(title=title.format(**data), title_justify="left", caption="speedup: over the functions")
    for column in ("", "prefill ms", "speedup", "ms a step", "speedup", "GB/s", "of plain reading"):
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
            cell(figures["fraction_of_bandwidth"], 2),
        )
    plain = {side: value * 1e-9 for side, value in data["memory_bytes_per_second"].items()}
    publish(data, file, table, f"plain reading of memory: {cell(plain, 1)} GB/s")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--new", type=click.IntRange(min=2), default=32, show_default=True, help="Tokens to generate.")
@measurement(rounds=5)
def main(bundle: Path, prompt: int, new: int, rounds: int, threads: int | None, file: Path | None) -> None:
    """Measure one bundle."""
    threads = threads or usable_cores()
    models = open_contenders(bundle, threads)
    manifest = models["kernels"].manifest
    ids = np.random.default_rng(0).integers(0, manifest.vocab_size, prompt).tolist()
    loops = {name: partial(edgeformer_loop(model), ids, new) for name, model in models.items()}
    runs: dict[str, list[Any]] = run_interleaved({**loops, "memory": MemoryReader(threads)}, rounds)
    bandwidths: list[float] = runs.pop("memory")
    data = {
        "bundle": manifest.name,
        "precision": manifest.plan.precision,
        "prompt_tokens": prompt,
        "new_tokens": new,
        "rounds": rounds,
        "threads": threads,
        "memory_bytes_per_second": asdict(Spread.of(bandwidths)),
        "contenders": report(runs, step_bytes(bundle / manifest.graph), bandwidths),
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
