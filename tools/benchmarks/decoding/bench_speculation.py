"""Measure decode throughput with and without prompt lookup, on a text that copies its prompt and on one that does not.

    python tools/benchmarks/decoding/bench_speculation.py /tmp/smollm2-135m-int4 --kernels

The model writes a text that is given: its logits are computed and a token is chosen from them, and then the token of
the text takes its place. So weights may be random, and drafts come true as often as in that text. Words, spaces and
marks of this repository's documentation are the tokens.

- edit: the prompt is a passage, and the text is the passage again, with every 16th word replaced;
- free: the prompt is a passage, and the text is what comes after it.

Both contenders share one session and run in alternation (interleave.py). Prints decode throughput in tokens/s, the
speedup of prompt lookup over plain decoding within a round, the counts of drafts; and how long a run of n tokens takes,
in steps. With --clients 2 --clients 4, so many clients of an engine write at once, each the text of another passage,
and the throughput is the sum of theirs.
"""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from edgeformer.runtime import (
    CausalLM,
    Engine,
    GenerationConfig,
    LogitsProcessor,
    SpeculationStatistics,
    load_causal_lm,
)
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.speculation.row_drafts import drafts_of
from edgeformer.runtime.sessions.session import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from benchmarks.command import measurement, publish
from benchmarks.environment import environment
from benchmarks.interleave import cell, compare, run_interleaved

PAGES = Path(__file__).parents[3] / "docs" / "explanation"

EDITED = 16
"""One word in so many is replaced in the text `edit`."""

RUNS = (1, 2, 3, 4, 6, 8, 11)
"""Tokens of the runs that are timed."""


@dataclass
class ScriptedRow(Row):
    """A row that writes a given text, after it has chosen a token as any row does."""

    script: Sequence[int] = field(default_factory=list)

    def _choose(self, logits: NDArray[np.float32]) -> int:
        super()._choose(logits)
        return self.script[len(self.tokens)]


@dataclass(frozen=True)
class Task:
    """A prompt and the text that follows it, as token ids."""

    prompt: list[int]
    text: list[int]


@dataclass(frozen=True)
class Run:
    """The tokens after the first, the seconds that they took, and the counts of drafts."""

    tokens: int
    seconds: float
    speculation: SpeculationStatistics | None


def tasks(vocab_size: int, prompt: int, new: int, start: int = 0) -> dict[str, Task]:
    """Return the tasks `edit` and `free`; ids are those of the words in the order in which they first come.

    start: words before the passage.
    """
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    words = re.findall(r"\w+|\s+|[^\w\s]", pages)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = [numbers[word] % vocab_size for word in words][start:]
    passage, edited = ids[:prompt], ids[prompt - new : prompt]
    edited[EDITED - 1 :: EDITED] = ids[prompt : prompt + len(edited[EDITED - 1 :: EDITED])]
    return {"edit": Task(passage, edited), "free": Task(passage, ids[prompt : prompt + new])}


def write(model: CausalLM, task: Task, drafted: int) -> Run:
    """Write the text of a task; drafted: tokens of a draft at most, 0 for plain decoding."""
    row = ScriptedRow(task.prompt, len(task.text), frozenset(), Sampling(), None, script=task.text)
    decoder = model.new_decoder(1, len(task.prompt) + len(task.text))
    config = GenerationConfig(prompt_lookup_num_tokens=drafted)
    run_rows(decoder, [row], drafts=drafts_of(row, config))
    return Run(len(row.tokens) - 1, row.decode_seconds, row.speculation)


def write_together(model: CausalLM, texts: Sequence[Task], drafted: int) -> Run:
    """Let as many clients of an engine write at once; return all tokens, and seconds of the same throughput."""

    def processor(task: Task) -> LogitsProcessor:
        def force(ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
            logits[task.text[len(ids) - len(task.prompt)]] = np.inf
            return logits

        return force

    options = {"prompt_lookup_num_tokens": drafted, "ignore_eos": True}
    with Engine(model, max_rows=len(texts), prefix_cache_bytes=0) as engine:
        streams = [
            engine.submit(each.prompt, max_new_tokens=len(each.text), logits_processors=[processor(each)], **options)
            for each in texts
        ]
        found = [stream.finish() for stream in streams]
    counts = SpeculationStatistics()
    for each in found:
        if each.speculation is not None:
            counts.runs += each.speculation.runs
            counts.drafted += each.speculation.drafted
            counts.accepted += each.speculation.accepted
    tokens = sum(len(each.token_ids) - 1 for each in found)
    speed = sum((len(each.token_ids) - 1) / each.decode_seconds for each in found)
    return Run(tokens, tokens / speed, counts)


def time_runs(model: CausalLM, past: int, rounds: int) -> dict[int, float]:
    """Return how many steps a run of n tokens takes after `past` others, by n: medians over the rounds."""
    decoder = model.new_decoder(1, past + 2 * max(RUNS))
    decoder.prefill(0, [1] * past)
    moment = decoder.snapshot()

    def timed(run: Callable[[], Any]) -> float:
        run()  # the first of its kind allocates
        start = time.perf_counter()
        run()
        taken = time.perf_counter() - start
        decoder.restore(moment)
        return taken

    steps: list[float] = []
    seconds: dict[int, list[float]] = {count: [] for count in RUNS}
    for _ in range(rounds):
        steps.append(timed(lambda: decoder.decode_one_token([1])))
        for count in RUNS:
            seconds[count].append(timed(partial(decoder.decode_tokens, 0, [1] * count)))
    return {count: median(each) / median(steps) for count, each in seconds.items()}


def report(runs: dict[str, dict[str, list[Run]]]) -> dict[str, Any]:
    """Return speeds, ratios and counts of each task as plain data."""
    found = {}
    for task, by_contender in runs.items():
        measured = {name: [run.tokens / run.seconds for run in done] for name, done in by_contender.items()}
        speeds, ratios = compare(measured, "lookup")
        counts = by_contender["lookup"][-1].speculation
        assert counts is not None
        found[task] = {"tokens_per_second": speeds, "lookup_over": ratios, "speculation": asdict(counts)}
    return found


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the report as tables."""
    title = "{bundle}, {precision}, {prompt_tokens} + {new_tokens} tokens, {threads} threads, kernels: {kernels}"
    caption = "decode throughput in tokens/s, median (range) of {rounds} rounds"
    table = Table(title=title.format(**data), title_justify="left", caption=caption.format(**data))
    for column in ("text", "plain", "lookup", "speedup", "runs", "drafted", "accepted"):
        table.add_column(column, justify="left" if column == "text" else "right")
    for task, figures in data["tasks"].items():
        speeds = [cell(figures["tokens_per_second"][name], 1) for name in ("plain", "lookup")]
        counts = [str(figures["speculation"][name]) for name in ("runs", "drafted", "accepted")]
        table.add_row(task, *speeds, cell(figures["lookup_over"]["plain"], 2), *counts)
    costs = ", ".join(f"{count}: {taken:.2f}" for count, taken in data["steps_of_runs"].items())
    publish(data, file, table, f"steps that a run of n tokens takes: {costs}")


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prompt", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens of the prompt.")
@click.option("--new", type=click.IntRange(min=2), default=192, show_default=True, help="Tokens to write.")
@click.option("--drafted", type=click.IntRange(min=1), default=10, show_default=True, help="Tokens of a draft at most.")
@click.option("--clients", type=click.IntRange(1, 8), multiple=True, help="Clients of an engine too; repeatable.")
@click.option("--kernels/--no-kernels", default=True, show_default=True, help="Whether to use edgeformer-kernels.")
@measurement(rounds=5)
def main(
    bundle: Path,
    prompt: int,
    new: int,
    drafted: int,
    clients: tuple[int, ...],
    kernels: bool,
    rounds: int,
    threads: int | None,
    file: Path | None,
) -> None:
    """Measure one bundle."""
    if new > prompt:
        raise click.UsageError(f"--new is {new}, but the text to copy has {prompt} tokens (--prompt).")
    threads = threads or usable_cores()
    model = load_causal_lm(bundle, "cpu", threads, kernels=kernels)
    contenders = {"plain": 0, "lookup": drafted}
    wanted = [tasks(model.manifest.vocab_size, prompt, new, place * prompt) for place in range(max(clients, default=1))]
    systems = {
        f"{task} {name}": partial(write, model, wanted[0][task], count)
        for task in wanted[0]
        for name, count in contenders.items()
    }
    for task in wanted[0]:
        for together in clients:
            texts = [each[task] for each in wanted[:together]]
            for name, count in contenders.items():
                systems[f"{task}, {together} clients {name}"] = partial(write_together, model, texts, count)
    done = run_interleaved(systems, rounds, pause_seconds=0)
    compared = dict.fromkeys(system.rpartition(" ")[0] for system in systems)
    data = {
        "bundle": model.manifest.name,
        "precision": model.manifest.plan.precision,
        "kernels": model.kernels.version or "none",
        "prompt_tokens": prompt,
        "new_tokens": new,
        "rounds": rounds,
        "threads": threads,
        "tasks": report({task: {name: done[f"{task} {name}"] for name in contenders} for task in compared}),
        "steps_of_runs": time_runs(model, prompt, rounds),
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
