"""Compare the streams of an engine with the rows of one batch, which all begin and end together.

    edgeformer export --model tiny-llama --output /tmp/tiny-llama
    python tools/benchmarks/bench_engine.py /tmp/tiny-llama --rows 64

Each round submits prompts of different lengths to an `Engine`, all at once, and runs the same prompts as one batch, as
`edgeformer bench --batch` does, in alternation (interleave.py). Both times are from token ids to texts: of the engine
from the first `submit` to the end of the last stream, of the batch with its cache. The engine is the one of all
rounds, as a server's. The run fails if a stream has other tokens than its row, in float32.

Prints the generated tokens per second (median and range over the rounds), and the engine's as a fraction of the
batch's, by the clock and by the processor time of all threads.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.table import Table

from edgeformer.runtime import CausalLM, Engine, load_causal_lm
from edgeformer.runtime.generate import run_rows
from edgeformer.runtime.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, report_console, run_interleaved

LENGTHS = (20, 60)
"""Shortest and longest prompt in tokens: short questions."""

Prompts = list[list[int]]


class Run(NamedTuple):
    """Seconds by the clock and of processor time, and the tokens of each row."""

    wall: float
    processor: float
    tokens: Prompts


def timed(run: Callable[[], Prompts]) -> Run:
    """Run a batch and time it."""
    wall, processor = time.perf_counter(), time.process_time()
    tokens = run()
    return Run(time.perf_counter() - wall, time.process_time() - processor, tokens)


def run_engine(engine: Engine, prompts: Prompts, new: int) -> Prompts:
    """Submit all prompts, and wait for their streams."""
    streams = [engine.submit(prompt, max_new_tokens=new, ignore_eos=True) for prompt in prompts]
    return [stream.finish().token_ids for stream in streams]


def run_batch(model: CausalLM, prompts: Prompts, new: int) -> Prompts:
    """Run all prompts as one batch."""
    decoder = model.new_decoder(len(prompts), max(map(len, prompts)) + new)
    rows = [model.new_row(prompt, max_new_tokens=new, ignore_eos=True) for prompt in prompts]
    for _ in run_rows(decoder, rows):
        pass
    return [row.tokens for row in rows]


def measure(model: CausalLM, rows: int, new: int, rounds: int) -> dict[str, list[Run]]:
    """Return the runs of both, by round. Raises ClickException if tokens differ in float32."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(LENGTHS[0], LENGTHS[1] + 1, (rounds + 1, rows))
    # The first set of prompts is for the untimed runs.
    sets = [
        [generator.integers(0, model.manifest.vocab_size, length).tolist() for length in each] for each in lengths
    ]
    with Engine(model, max_rows=rows) as engine:
        of_engine, of_batch = iter(sets), iter(sets)
        runs = run_interleaved(
            {
                "engine": lambda: timed(partial(run_engine, engine, next(of_engine), new)),
                "batch": lambda: timed(partial(run_batch, model, next(of_batch), new)),
            },
            rounds,
        )
    different = sum(a != b for mine, others in zip(*runs.values(), strict=True) for a, b in zip(mine[2], others[2]))
    if different and model.manifest.precision == "fp32":
        raise click.ClickException(f"{different} streams have other tokens than their rows")
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
    figures = {}
    for clock in ("wall", "processor"):
        speeds = {name: [rows * new / getattr(run, clock) for run in done] for name, done in runs.items()}
        spreads, ratios = compare(speeds, "engine")
        figures[clock] = {"tokens_per_second": spreads, "ratio": ratios["batch"]}
    data: dict[str, Any] = {
        "model": model.manifest.name,
        "precision": model.manifest.precision,
        "rows": rows,
        "new": new,
        "rounds": rounds,
        "threads": threads,
        "clocks": figures,
        "environment": environment(),
    }
    if file:
        file.write_text(json.dumps(data, indent=1) + "\n")
    print_report(data)


def print_report(data: dict[str, Any]) -> None:
    """Print a table: for both clocks, the speeds and their ratio."""
    title = "{model}, {precision}, {rows} rows, {new} new tokens, {threads} threads, median (range) of {rounds}"
    table = Table(title=title.format(**data), title_justify="left")
    for column in ("clock", "engine, tokens/s", "batch, tokens/s", "engine / batch"):
        table.add_column(column, justify="left" if column == "clock" else "right")
    for clock, figures in data["clocks"].items():
        speeds = figures["tokens_per_second"]
        table.add_row(clock, cell(speeds["engine"], 0), cell(speeds["batch"], 0), cell(figures["ratio"], 3))
    console = report_console()
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))


if __name__ == "__main__":
    main()
