"""Compare the streams of an engine with the rows of one batch, which all begin and end together.

    edgeformer export --model tiny-llama --output /tmp/tiny-llama
    python tools/benchmarks/serving/bench_engine.py /tmp/tiny-llama --rows 64

Each round submits prompts of different lengths to an `Engine`, all at once, and runs the same prompts as one batch, as
`edgeformer bench --batch` does, in alternation (interleave.py). Both times are from token ids to texts: of the engine
from the first `submit` to the end of the last stream, of the batch with its cache. Engines are those of all rounds, as
a server's. One of them keeps no prefixes, as a batch does. The other keeps about those of one round, as an engine that
has run for long: each text is copied, and displaces another. The run fails if a stream has other tokens than its row,
in float32.

Prints the generated tokens per second (median and range over the rounds), and what part they are of the batch's, by the
clock and by the processor time of all threads.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.table import Table

from edgeformer.runtime import CausalLM, Engine, load_causal_lm
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.sessions.session import cache_dtype, usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

LENGTHS = (20, 60)
"""Shortest and longest prompt in tokens: short questions."""

KEEPING, FORGETTING, BATCH = "engine", "engine, keeps nothing", "batch"

Prompts = list[list[int]]


class Run(NamedTuple):
    """Seconds by the clock and of processor time, and the tokens of each row."""

    wall: float
    processor: float
    tokens: Prompts


def timed(run: Callable[[Prompts, int], Prompts], sets: Iterator[Prompts], new: int) -> Run:
    """Run the next set of prompts and time it."""
    prompts = next(sets)
    wall, processor = time.perf_counter(), time.process_time()
    tokens = run(prompts, new)
    return Run(time.perf_counter() - wall, time.process_time() - processor, tokens)


def run_engine(engine: Engine, prompts: Prompts, new: int) -> Prompts:
    """Submit all prompts, and wait for their streams."""
    streams = [engine.submit(prompt, max_new_tokens=new, ignore_eos=True) for prompt in prompts]
    return [stream.finish().token_ids for stream in streams]


def run_batch(model: CausalLM, prompts: Prompts, new: int) -> Prompts:
    """Run all prompts as one batch."""
    decoder = model.new_decoder(len(prompts), max(map(len, prompts)) + new)
    rows = [model.new_row(prompt, max_new_tokens=new, ignore_eos=True) for prompt in prompts]
    run_rows(decoder, rows)
    return [row.tokens for row in rows]


def measure(model: CausalLM, rows: int, new: int, rounds: int) -> dict[str, list[Run]]:
    """Return the runs of each system, by round. Raises ClickException if tokens differ in float32."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(LENGTHS[0], LENGTHS[1] + 1, (rounds + 2, rows))
    # The first two sets of prompts are for untimed runs, which fill the rows and then the prefixes.
    sets = [[generator.integers(0, model.manifest.vocab_size, length).tolist() for length in each] for each in lengths]
    cache = model.manifest.cache
    kept = rows * cache.size_in_bytes(np.dtype(cache_dtype(model.manifest)).itemsize, 1, LENGTHS[0] + new)
    with (
        Engine(model, max_rows=rows, prefix_cache_bytes=kept) as keeping,
        Engine(model, max_rows=rows, prefix_cache_bytes=0) as forgetting,
    ):
        systems = {
            KEEPING: partial(run_engine, keeping),
            FORGETTING: partial(run_engine, forgetting),
            BATCH: partial(run_batch, model),
        }
        turns = {name: partial(timed, run, iter(sets), new) for name, run in systems.items()}
        for turn in turns.values():
            turn()
        runs = run_interleaved(turns, rounds)
    of_batch = [run.tokens for run in runs[BATCH]]
    if model.manifest.plan.precision == "fp32" and any(
        [run.tokens for run in done] != of_batch for done in runs.values()
    ):
        raise click.ClickException("a stream has other tokens than its row")
    return runs


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rows", type=click.IntRange(min=1), default=64, show_default=True, help="Streams at once.")
@click.option("--new", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens of each answer.")
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads. [default: all usable cores]")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def main(bundle: Path, rows: int, new: int, rounds: int, threads: int | None, file: Path | None) -> None:
    """Measure one bundle."""
    threads = threads or usable_cores()
    model = load_causal_lm(bundle, "cpu", threads)
    runs = measure(model, rows, new, rounds)
    figures: dict[str, dict[str, Any]] = {}
    for name, done in runs.items():
        figures[name] = {}
        for clock in ("wall", "processor"):
            speeds = {
                "this": [rows * new / getattr(run, clock) for run in done],
                "batch": [rows * new / getattr(run, clock) for run in runs[BATCH]],
            }
            spreads, ratios = compare(speeds, "this")
            figures[name][clock] = {"tokens_per_second": spreads["this"], "of_batch": ratios["batch"]}
    data: dict[str, Any] = {
        "model": model.manifest.name,
        "precision": model.manifest.plan.precision,
        "rows": rows,
        "new": new,
        "rounds": rounds,
        "threads": threads,
        "systems": figures,
        "environment": environment(),
    }
    if file:
        file.write_text(json.dumps(data, indent=1) + "\n")
    print_report(data)


def print_report(data: dict[str, Any]) -> None:
    """Print a table: for each system, its speed, and its part of the batch's by both clocks."""
    title = "{model}, {precision}, {rows} rows, {new} new tokens, {threads} threads, median (range) of {rounds}"
    table = Table(title=title.format(**data), title_justify="left")
    for column in ("", "tokens/s", "of the batch's", "by processor time"):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in data["systems"].items():
        wall, processor = figures["wall"], figures["processor"]
        parts = (cell(each["of_batch"], 3) for each in (wall, processor))
        table.add_row(name, cell(wall["tokens_per_second"], 0), *parts)
    console = report_console()
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))


if __name__ == "__main__":
    main()
