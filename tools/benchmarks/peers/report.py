"""Summarise generations as speeds, ratios within a round and agreement of tokens, and print them as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.interleave import cell, compare
from benchmarks.peers.generation import Generation
from benchmarks.peers.registry import OURS

FIGURES = ("prefill", "first_ms", "decode", "peak_mib")
"""Prefill throughput (prompt tokens/s to the first new token), TTFT in ms, decode throughput (the others/s), MiB."""
SPEEDS = ("prefill", "decode")
"""Figures with ratios. TTFT is the prompt length over the prefill throughput."""


def figures(turn: Generation, prompt: int) -> dict[str, float]:
    """Return the figures of one generation; no memory where it is not known."""
    memory = {} if turn.peak_mib is None else {"peak_mib": turn.peak_mib}
    return memory | {
        "prefill": prompt / turn.first_seconds,
        "first_ms": 1000 * turn.first_seconds,
        "decode": (len(turn.tokens) - 1) / turn.rest_seconds,
    }


def agreeing(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of equal tokens before the first difference."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def summarise(turns: Mapping[str, Sequence[Generation]], prompt: int, new: int) -> dict[str, Any]:
    """Return spreads of the figures over the rounds, ratios of edgeformer's speeds, and the number of equal tokens.

    Raises ClickException if a runtime generated another number of tokens.
    """
    for name, done in turns.items():
        if lengths := {len(turn.tokens) for turn in done} - {new}:
            raise click.ClickException(
                f"{name} generated {sorted(lengths)[0]} tokens instead of {new}; no speed is reported."
            )
    measured = {name: [figures(turn, prompt) for turn in done] for name, done in turns.items()}
    speeds: dict[str, Any] = {name: {} for name in turns}
    ratios: dict[str, Any] = {name: {} for name in turns if OURS in turns and name != OURS}
    for figure in FIGURES:
        values = {name: [one[figure] for one in done if figure in one] for name, done in measured.items()}
        if not all(values.values()):
            continue
        spreads, over = compare(values, OURS if ratios else next(iter(values)))
        for name, spread in spreads.items():
            speeds[name][figure] = spread
        if figure in SPEEDS:
            for name in ratios:
                ratios[name][figure] = over[name]
    agree = {
        name: min(agreeing(ours.tokens, other.tokens) for ours, other in zip(turns[OURS], turns[name], strict=True))
        for name in ratios
    }
    return {"figures": speeds, "edgeformer_over": ratios, "same_leading_tokens": agree}


def print_result(console: Console, result: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Print one precision and prompt length as a Markdown table."""
    busy = data.get("busy_processes", 0)
    beside = f", beside {busy} busy process{'es' if busy > 1 else ''}" if busy else ""
    console.print(
        f"\n{data['checkpoint']}, {result['precision']}: {result['prompt_tokens']} + {data['new_tokens']} tokens, "
        f"batch 1, {data['threads']} threads, median (range) of {data['rounds']} rounds{beside}\n"
    )
    table = Table(box=box.MARKDOWN)
    for column in ("", "prefill", "speedup", "TTFT ms", "decode", "speedup"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, speeds in result["figures"].items():
        ratios = result["edgeformer_over"].get(name, {})
        table.add_row(
            name,
            f"{speeds['prefill']['median']:,.0f}",
            cell(ratios.get("prefill"), 2),
            f"{speeds['first_ms']['median']:,.0f}",
            f"{speeds['decode']['median']:,.1f}",
            cell(ratios.get("decode"), 2),
        )
    console.print(table)
    known = {name: each["peak_mib"] for name, each in result["figures"].items() if "peak_mib" in each}
    if known:
        console.print("MiB: " + ", ".join(f"{name} {spread['median']:,.0f}" for name, spread in known.items()))
    if result["precision"] == "fp32":
        print_agreement(console, result["same_leading_tokens"], data["new_tokens"])


def print_agreement(console: Console, agree: Mapping[str, int], new: int) -> None:
    """Print which runtimes generate edgeformer's tokens; with the same exact weights all of them should."""
    same = [name for name, count in agree.items() if count == new]
    if same:
        console.print(f"All {new} tokens of every round equal edgeformer's for: {', '.join(same)}.")
    for name, count in agree.items():
        if count < new:
            console.print(f"{name} agrees with edgeformer on the first {count} of {new} tokens, in its worst round.")


def print_facts(console: Console, data: Mapping[str, Any]) -> None:
    """Print versions, the machine, and which peers were left out."""
    console.print("\nTTFT: milliseconds until the first new token. prefill, decode: tokens/s until then and after it.")
    console.print("speedup: edgeformer's speed over this runtime's, within a round: median (range).")
    console.print("MiB: the most memory of its process meanwhile, the model and mapped files included.")
    for name, facts in data["peers"].items():
        called = ", ".join(f"{precision}: {words}" for precision, words in facts["precisions"].items())
        versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
        console.print(f"{name}: {versions} ({called})")
    for line in data["left_out"]:
        console.print(f"Left out: {line}")
    console.print(", ".join(f"{name} {value}" for name, value in data["environment"].items()))
