"""Write what `check_cuda.py` found as a page with a plot: NAME.md and NAME.png beside NAME.json.

python tools/verification/cuda/cuda_report.py cuda-check.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from verification.cuda.cuda_speed import NEW_TOKENS, PROMPT, fractions

FIGURES = {"prefill_tokens_per_second": "prefill, tokens/s", "decode_tokens_per_second": "decode, tokens/s"}


def write_report(data: dict[str, Any], output: Path) -> list[Path]:
    """Write the page, and the plot if there are speeds; return their paths. output: the JSON file of the data."""
    page, plot = output.with_suffix(".md"), output.with_suffix(".png")
    drawn = any(_speeds(case) for case in data.get("speed", {}).values())
    if drawn:
        draw(data["speed"], plot)
    page.write_text(page_of(data, plot.name if drawn else None), encoding="utf-8")
    return [page, plot] if drawn else [page]


def page_of(data: dict[str, Any], plot: str | None) -> str:
    """Return the text of the page; plot: the name of the picture."""
    here = data["environment"]
    lines = [f"# Check of CUDA: {', '.join(here['gpus']) or 'no GPU'}", ""]
    versions = ("python", "edgeformer", "onnxruntime", "torch", "transformers")
    lines += [", ".join(f"{name} {here[name]}" for name in versions if here.get(name)) + ".", ""]
    if not data["available"]:
        lines += [f"CUDA is not available: {data['reason']}.", ""]
    lines += ["| case | result | parity | nodes on the CPU | CUDA graphs |", "|---|---|---|---|---|"]
    lines += [_case_row(case) for case in data["cases"]]
    if data.get("speed"):
        lines += ["", "## Speed", "", _peaks(data["peaks"]), ""]
        lines += [f"![Prefill and decode throughput of each runtime.]({plot})", ""] if plot else []
        lines += ["| model | runtime | prefill, tokens/s | of FLOP/s | decode, tokens/s | of bandwidth |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, case in data["speed"].items():
            lines += _speed_rows(name, case, data["peaks"])
    return "\n".join(lines) + "\n"


def _case_row(case: dict[str, Any]) -> str:
    parity = case.get("parity", {}).get("passed")
    cells = [
        case["key"],
        case.get("error", "passed" if case.get("passed") else "failed").replace("|", "\\|").splitlines()[0],
        "" if parity is None else "passed" if parity else "failed",
        ", ".join(f"{op} {count}" for op, count in case.get("nodes", {}).get("on_the_cpu", {}).items()),
        {True: "same logits", False: "other logits", None: ""}[case.get("cuda_graphs", {}).get("same_logits")],
    ]
    return f"| {' | '.join(cells)} |"


def _peaks(most: dict[str, float]) -> str:
    bandwidth, flops = most["bytes_per_second"] / 1e9, most["flops_per_second"] / 1e12
    return (
        f"Prompts of {PROMPT} tokens and {NEW_TOKENS} new ones, one row. Measured on this GPU: a copy moves "
        f"{bandwidth:,.0f} GB/s, a float16 product computes {flops:,.0f} TFLOP/s. A step must read the weights and the "
        "cache once."
    )


def _speed_rows(name: str, case: dict[str, Any], most: dict[str, float]) -> list[str]:
    rows = []
    for runtime, speed in case.get("runtimes", {}).items():
        if "reason" in speed:
            rows.append(f"| {name} | {runtime} | {speed['reason'].splitlines()[0]} | | | |")
            continue
        flops, bandwidth = fractions(speed, case, most)
        prefill, decode = speed["prefill_tokens_per_second"], speed["decode_tokens_per_second"]
        rows.append(f"| {name} | {runtime} | {prefill:,.0f} | {flops:.0%} | {decode:,.1f} | {bandwidth:.0%} |")
    return rows or [f"| {name} | {case['error'].splitlines()[0]} | | | | |"]


def _speeds(case: dict[str, Any]) -> dict[str, Any]:
    return {name: speed for name, speed in case.get("runtimes", {}).items() if "reason" not in speed}


def draw(cases: dict[str, Any], file: Path) -> None:
    """Draw prefill and decode throughput: a row of panels for each model, a bar for each runtime."""
    figure = Figure(figsize=(11, 0.6 + 2.2 * len(cases)), layout="constrained")
    grid = figure.subplots(len(cases), len(FIGURES), squeeze=False)
    for panels, (model, case) in zip(grid, cases.items(), strict=True):
        speeds = _speeds(case)
        for axes, (key, label) in zip(panels, FIGURES.items(), strict=True):
            values = [speed[key] for speed in speeds.values()]
            colours = ["#4c72b0" if name.startswith("edgeformer") else "#b0b7c6" for name in speeds]
            axes.barh(range(len(values)), values, color=colours)
            axes.set_yticks(range(len(values)), list(speeds), fontsize=8)
            axes.invert_yaxis()
            axes.locator_params(axis="x", nbins=5)
            axes.tick_params(axis="x", labelsize=8)
            axes.set_title(f"{model}: {label}", fontsize=9, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            for place, value in enumerate(values):
                axes.annotate(
                    f"{value:,.0f}", (value, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
                )
            axes.margins(x=0.15)
    figure.savefig(file, dpi=120)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("found", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(found: Path) -> None:
    """Write the page of a check that has run."""
    for path in write_report(json.loads(found.read_text(encoding="utf-8")), found):
        click.echo(f"written to {path}")


if __name__ == "__main__":
    main()
