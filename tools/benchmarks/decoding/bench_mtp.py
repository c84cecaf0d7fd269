"""Measure decode throughput with and without drafts of the model's own layer of multi-token prediction.

    edgeformer export --model tiny-llama --mtp --output /tmp/tiny-llama-mtp
    python tools/benchmarks/decoding/bench_mtp.py /tmp/tiny-llama-mtp

Both contenders write the same texts greedily, in alternation (interleave.py), and the tokens are compared: drafts must
not change them. Prints decode throughput in tokens/s, the speedup within a round, the counts of drafts, and what a
draft of k tokens and the run that verifies it take, in steps.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.table import Table

from edgeformer.runtime import CausalLM, load_causal_lm
from edgeformer.runtime.generation.speculation import SpeculationStatistics, keep_states
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

PROMPTS = (
    "Once upon a time",
    "Once upon a time, there was a little girl",
    "Once upon a time, a shy rabbit",
    "There once was a brave boy named",
    "Long ago, a clever fox",
    "Mia was a curious girl who lived",
    "Tom was",
    "There once was a friendly bear",
)
"""Beginnings of stories, which tiny-llama goes on with."""

DRAFTS = (1, 2, 3, 4, 5, 6)
"""Tokens of the drafts that are timed."""


@dataclass(frozen=True)
class Run:
    """The tokens of all texts, the seconds of their decode steps, and the counts of drafts."""

    texts: list[list[int]]
    seconds: float
    speculation: SpeculationStatistics

    @property
    def speed(self) -> float:
        """Return tokens a second: the first token of a text comes with its prompt."""
        return (sum(map(len, self.texts)) - len(self.texts)) / self.seconds


def write(model: CausalLM, prompts: tuple[str, ...], new: int, drafted: int) -> Run:
    """Let a model go on with each prompt; drafted: tokens of a draft at most."""
    texts, seconds, counts = [], 0.0, SpeculationStatistics()
    for prompt in prompts:
        found = model.generate(prompt, max_new_tokens=new, num_assistant_tokens=drafted)
        texts.append(found.token_ids)
        seconds += found.decode_seconds
        if found.speculation is not None:
            counts.runs += found.speculation.runs
            counts.verifications += found.speculation.verifications
            counts.drafted += found.speculation.drafted
            counts.accepted += found.speculation.accepted
    return Run(texts, seconds, counts)


def time_drafts(model: CausalLM, prompt: str, rounds: int) -> dict[int, float]:
    """Return how many steps a draft of k tokens and the run of k + 1 tokens take together, by k: medians."""
    row = model.new_row(prompt, max_new_tokens=64)
    decoder = model.new_decoder(1, len(row.prompt) + 64)
    drafter = model._new_mtp(row, keep_states(decoder, model.hidden_size))
    text = [*row.prompt, int(decoder.prefill(0, row.prompt).argmax())]
    drafter.extend(text[:-1])
    drafter.extend(text[-1:])

    def verify(drafted: list[int]) -> None:
        decoder.decode_tokens(0, [text[-1], *drafted])
        decoder.cut(0, len(text) - 1)

    def step() -> None:
        decoder.decode_one_token(text[-1:])
        decoder.cut(0, len(text) - 1)

    def cycle(count: int) -> None:
        drafter.known = len(text) - 2  # the last token is new
        verify(drafter.draft(count))

    def timed(run: Callable[[], None]) -> list[float]:
        taken = []
        for _ in range(8):  # adjacent, as in a request; the first ones follow another shape
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        return taken[2:]

    steps: list[float] = []
    seconds: dict[int, list[float]] = {count: [] for count in DRAFTS}
    for _ in range(10 * rounds):
        steps += timed(step)
        for count in DRAFTS:
            seconds[count] += timed(partial(cycle, count))
    return {count: median(each) / median(steps) for count, each in seconds.items()}


def report(done: dict[str, list[Run]]) -> dict[str, Any]:
    """Return speeds, their ratio, counts, and whether all texts are the same, as plain data."""
    speeds, ratios = compare({name: [run.speed for run in runs] for name, runs in done.items()}, "mtp")
    first, counts = done["plain"][0].texts, done["mtp"][-1].speculation
    return {
        "tokens": sum(map(len, first)),
        "tokens_per_second": speeds,
        "mtp_over": ratios,
        "speculation": asdict(counts) | {"mean_accepted": counts.accepted / max(counts.verifications, 1)},
        "same_tokens": all(run.texts == first for runs in done.values() for run in runs),
    }


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as a table."""
    title = "{bundle}, {precision}, {tokens} tokens, {threads} threads, kernels: {kernels}"
    caption = "decode throughput in tokens/s, median (range) of {rounds} rounds; the same tokens: {same_tokens}"
    table = Table(title=title.format(**data), title_justify="left", caption=caption.format(**data))
    for column in ("plain", "mtp", "speedup", "runs", "drafted", "accepted"):
        table.add_column(column, justify="right")
    speeds = [cell(data["tokens_per_second"][name], 0) for name in ("plain", "mtp")]
    counts = [str(data["speculation"][name]) for name in ("runs", "drafted", "accepted")]
    table.add_row(*speeds, cell(data["mtp_over"]["plain"], 2), *counts)
    costs = ", ".join(f"{count}: {taken:.2f}" for count, taken in data["steps_of_drafts"].items())
    publish(data, file, table, f"steps that a draft of k tokens and its verification take: {costs}")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--new", type=click.IntRange(min=2), default=192, show_default=True, help="Tokens of a text at most.")
@click.option("--prompt", "prompts", multiple=True, help="Instead of beginnings of stories; repeatable.")
@click.option("--drafted", type=click.IntRange(min=1), default=8, show_default=True, help="Tokens of a draft at most.")
@click.option("--kernels/--no-kernels", default=True, show_default=True, help="Whether to use edgeformer-kernels.")
@measurement(rounds=9)
def main(
    bundle: Path,
    new: int,
    prompts: tuple[str, ...],
    drafted: int,
    kernels: bool,
    rounds: int,
    threads: int | None,
    file: Path | None,
) -> None:
    """Measure one bundle."""
    threads, prompts = threads or usable_cores(), prompts or PROMPTS
    plain = load_causal_lm(bundle, "cpu", threads, kernels=kernels)
    drafting = load_causal_lm(bundle, "cpu", threads, kernels=kernels, draft="mtp")
    models = {"plain": plain, "mtp": drafting}
    systems = {name: partial(write, model, prompts, new, drafted) for name, model in models.items()}
    done = run_interleaved(systems, rounds, pause_seconds=0)
    data = {
        "bundle": plain.manifest.name,
        "precision": plain.manifest.plan.precision,
        "kernels": plain.kernels.version or "none",
        "rounds": rounds,
        "threads": threads,
        **report(done),
        "steps_of_drafts": time_drafts(drafting, prompts[0], rounds),
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
