"""Draw what benchmarks found.

`draw`: speeds as bars, one row of panels per precision, one bar per prompt length, the range over rounds as a line. Of
more than two lengths: speeds and memory as lines over the length, one per runtime, the range as an area.
`draw_sizes`: the loss of a quantized model against its size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.registry import OURS, PEERS

PANELS = {"prefill": "prefill, tokens/s", "decode": "decode, tokens/s"}

OVER_LENGTHS = PANELS | {"peak_mib": "memory, MiB"}

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#937860", "#c44e52")
"""One colour per prompt length, or per runtime."""

MOST_BARS = 2
"""Prompt lengths that are drawn as bars."""

PALE = 0.5
"""Opacity of the bars of other runtimes, so that edgeformer's stand out."""


def draw(data: Mapping[str, Any], file: Path) -> None:
    """Write the figure to a file, in the format that its name asks for."""
    precisions = list(dict.fromkeys(result["precision"] for result in data["results"]))
    prompts = [result["prompt_tokens"] for result in data["results"] if result["precision"] == precisions[0]]
    by_length = len(prompts) > MOST_BARS
    panels, drawn = (OVER_LENGTHS, draw_lines) if by_length else (PANELS, draw_panel)
    figure = Figure(figsize=(11, 1 + 2.8 * len(precisions)), layout="constrained")
    grid = figure.subplots(len(precisions), len(panels), squeeze=False)
    for row, precision in zip(grid, precisions, strict=True):
        results = [result for result in data["results"] if result["precision"] == precision]
        for axes, (figure_name, label) in zip(row, panels.items(), strict=True):
            drawn(axes, results, figure_name)
            axes.set_title(f"{precision}: {label}", fontsize=10, loc="left")
    if by_length:
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    else:
        # The legend is made by hand, because bars of one prompt length differ in opacity.
        for colour, prompt in zip(COLOURS, prompts, strict=False):
            grid[0][0].bar([0], [0], color=colour, label=f"prompt of {prompt}")
        figure.legend(loc="outside lower center", ncols=len(prompts), frameon=False)
    figure.suptitle(
        f"{data['checkpoint']}: {data['new_tokens']} new tokens, batch 1, {data['threads']} threads, median and range "
        f"of {data['rounds']} rounds",
        fontsize=11,
    )
    figure.savefig(file, dpi=120)


def names_in(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of runtimes, those of the registry first and in its order."""
    figures = results[0]["figures"]
    return sorted(figures, key=lambda name: list(PEERS).index(name) if name in PEERS else len(PEERS))


def draw_lines(axes: Axes, results: Sequence[Mapping[str, Any]], figure_name: str) -> None:
    """Draw one figure of one precision over the prompt length, both in powers of two: one line per runtime."""
    for colour, name in zip(COLOURS, names_in(results), strict=False):
        points = [(each["prompt_tokens"], each["figures"][name].get(figure_name)) for each in results]
        lengths, spreads = zip(*sorted((length, spread) for length, spread in points if spread), strict=True)
        middle, low, high = ([spread[key] for spread in spreads] for key in ("median", "low", "high"))
        axes.plot(lengths, middle, "o-", color=colour, label=name, markersize=3, linewidth=2 if name == OURS else 1)
        axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("prompt, tokens", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_panel(axes: Axes, results: Sequence[Mapping[str, Any]], figure_name: str) -> None:
    """Draw one figure of one precision: one group of bars per runtime, one bar per prompt length."""
    names = names_in(results)
    width = 0.8 / len(results)
    for number, (colour, result) in enumerate(zip(COLOURS, results, strict=False)):
        for place, name in enumerate(names):
            spread = result["figures"][name][figure_name]
            middle, low, high = spread["median"], spread["low"], spread["high"]
            centre = place + (number - (len(results) - 1) / 2) * width
            axes.bar(centre, middle, width, color=colour, alpha=1 if name == OURS else PALE)
            axes.errorbar(centre, middle, [[middle - low], [high - middle]], color="black", linewidth=1, capsize=2)
            axes.annotate(
                f"{middle:,.0f}", (centre, high), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=7
            )
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize=8)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def draw_sizes(rows: Mapping[str, tuple[int, float]], title: str, file: Path) -> None:
    """Write a figure of divergences in nats against bytes, by the names of rows; those without a loss are left out.

    Rows of one runtime, and target sizes, share a colour.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    kinds: dict[str, list[tuple[float, float, str]]] = {}
    for name, (size, divergence) in rows.items():
        kind, _, rest = name.partition(", ")
        peer, target = kind in PEERS, name.startswith("target size")
        known = kind if peer else "edgeformer, a target size" if target else OURS
        if divergence > 1e-9:
            kinds.setdefault(known, []).append((size / 1e6, divergence, rest if peer else name))
    for colour, (kind, points) in zip(COLOURS, sorted(kinds.items()), strict=False):
        points.sort()
        joined = "-" if "target" in kind else ""
        axes.plot(
            *zip(*((size, nats) for size, nats, _ in points), strict=True), f"o{joined}", color=colour, label=kind
        )
        for size, nats, name in points if not joined else ():
            axes.annotate(name, (size, nats), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colour)
    axes.set_yscale("log")
    axes.set_xlabel("MB of graph and weights")
    axes.set_ylabel("mean KL from float32, nats")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(file, dpi=120)
