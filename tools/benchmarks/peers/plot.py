"""Draw speeds as bars: one row of panels per precision, one bar per prompt length, the range over rounds as a line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.registry import OURS, PEERS

PANELS = {"prefill": "prefill, tokens/s", "decode": "decode, tokens/s"}

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3")
"""One colour per prompt length."""

PALE = 0.5
"""Opacity of the bars of other runtimes, so that edgeformer's stand out."""


def draw(data: Mapping[str, Any], file: Path) -> None:
    """Write the figure to a file, in the format that its name asks for."""
    precisions = list(dict.fromkeys(result["precision"] for result in data["results"]))
    figure = Figure(figsize=(11, 1 + 2.8 * len(precisions)), layout="constrained")
    grid = figure.subplots(len(precisions), len(PANELS), squeeze=False)
    for row, precision in zip(grid, precisions, strict=True):
        results = [result for result in data["results"] if result["precision"] == precision]
        for axes, (figure_name, label) in zip(row, PANELS.items(), strict=True):
            draw_panel(axes, results, figure_name)
            axes.set_title(f"{precision}: {label}", fontsize=10, loc="left")
    # The legend is made by hand, because bars of one prompt length differ in opacity.
    prompts = [result["prompt_tokens"] for result in data["results"] if result["precision"] == precisions[0]]
    for colour, prompt in zip(COLOURS, prompts, strict=False):
        grid[0][0].bar([0], [0], color=colour, label=f"prompt of {prompt}")
    figure.legend(loc="outside lower center", ncols=len(prompts), frameon=False)
    figure.suptitle(
        f"{data['checkpoint']}: {data['new_tokens']} new tokens, batch 1, {data['threads']} threads, median and range "
        f"of {data['rounds']} rounds",
        fontsize=11,
    )
    figure.savefig(file, dpi=120)


def draw_panel(axes: Axes, results: Sequence[Mapping[str, Any]], figure_name: str) -> None:
    """Draw one figure of one precision: one group of bars per runtime, one bar per prompt length."""
    names = [name for name in PEERS if name in results[0]["figures"]]
    names += [name for name in results[0]["figures"] if name not in names]
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
