"""Measure the time to first token of the second turn of a conversation, with and without what the first one left.

    python tools/checkpoints/random_checkpoint.py smollm2-135m --output /tmp/smollm2-135m
    python tools/benchmarks/decoding/bench_prefixes.py /tmp/smollm2-135m --precision int4

Each round holds one conversation of random tokens with an `Engine` that keeps prefixes and with one that keeps none, in
alternation (interleave.py): a long prompt, an answer, and a second turn that has both and a short message behind them.
The time to first token is from `submit` to the first event of the stream.

Prints the times of both turns (median and range over the rounds), and the second turn's as a fraction of the first's.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from rich.table import Table

from edgeformer.export import export_model
from edgeformer.manifest.parts import Precision
from edgeformer.runtime import Engine, load_causal_lm
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

TURNS = ("first turn", "second turn")
KEPT: dict[str, dict[str, Any]] = {"kept": {}, "not kept": {"prefix_cache_bytes": 0}}


def first_token(engine: Engine, prompt: list[int], new: int) -> tuple[float, list[int]]:
    """Return the seconds to the first token, and the whole answer."""
    start = time.perf_counter()
    stream = engine.submit(prompt, max_new_tokens=new, ignore_eos=True)
    next(stream.events())
    seconds = time.perf_counter() - start
    return seconds, stream.finish().token_ids


def converse(
    engine: Engine, vocab_size: int, seeds: "count[int]", tokens: int, answer: int, message: int
) -> list[float]:
    """Return the seconds to the first token of both turns of a new conversation."""
    generator = np.random.default_rng(next(seeds))
    prompt = generator.integers(0, vocab_size, tokens).tolist()
    first, told = first_token(engine, prompt, answer)
    second, _ = first_token(engine, [*prompt, *told, *generator.integers(0, vocab_size, message).tolist()], 1)
    return [first, second]


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print a table: for both engines, the times of both turns and their ratio."""
    table = Table(
        title="{model}, {precision}, {threads} threads, median (range) of {rounds}".format(**data), title_justify="left"
    )
    for column in ("prefixes", *(f"{turn}, ms" for turn in TURNS), "second / first"):
        table.add_column(column, justify="left" if column == "prefixes" else "right")
    for name, figures in data["systems"].items():
        table.add_row(name, *(cell(figures["milliseconds"][turn], 1) for turn in TURNS), cell(figures["ratio"], 3))
    publish(data, file, table)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--precision", type=click.Choice(get_args(Precision)), default="int4", show_default=True)
@click.option("--prompt", type=click.IntRange(min=1), default=2000, show_default=True, help="Tokens of the first turn.")
@click.option("--answer", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens of its answer.")
@click.option("--message", type=click.IntRange(min=1), default=16, show_default=True, help="New tokens of the second.")
@measurement(rounds=5)
def main(
    checkpoint: Path,
    precision: Precision,
    rounds: int,
    threads: int | None,
    file: Path | None,
    **lengths: int,
) -> None:
    """Measure one checkpoint."""
    threads, seeds = threads or usable_cores(), count()
    systems: dict[str, Callable[[], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bundle = export_model(checkpoint, Path(folder) / "b", precision=precision, verify=None).path
        engines = {name: Engine(load_causal_lm(bundle, "cpu", threads), **options) for name, options in KEPT.items()}
        for name, engine in engines.items():
            vocab_size = load_causal_lm(bundle, "cpu", threads).manifest.vocab_size
            tokens = lengths["prompt"], lengths["answer"], lengths["message"]
            systems[name] = partial(converse, engine, vocab_size, seeds, *tokens)
        runs = run_interleaved(systems, rounds)
        for engine in engines.values():
            engine.close()
    figures = {}
    for name, done in runs.items():
        seconds = {turn: [run[place] for run in done] for place, turn in enumerate(TURNS)}
        spreads, ratios = compare(seconds, TURNS[1])
        milliseconds = {turn: {key: 1e3 * value for key, value in each.items()} for turn, each in spreads.items()}
        figures[name] = {"milliseconds": milliseconds, "ratio": ratios[TURNS[0]]}
    data = {
        "model": checkpoint.name,
        "precision": precision,
        **lengths,
        "rounds": rounds,
        "threads": threads,
        "systems": figures,
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
