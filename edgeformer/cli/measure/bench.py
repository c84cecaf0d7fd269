"""edgeformer bench"""

import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._options import OUTPUT, Command, cache_option, execution_options, json_option, option
from edgeformer.cli._output import note, print_json, print_table, progress_bar
from edgeformer.errors import RequestError, require
from edgeformer.manifest.manifest import MODELS
from edgeformer.manifest.providers import PROVIDERS

if TYPE_CHECKING:
    from edgeformer.runtime.measure.benchmarking import BenchmarkResult
    from edgeformer.runtime.measure.benchmarking.result import Kernels, Spread, Workload

WIDTH = 80
"""Columns of the text above the tables."""

UNKNOWN = "?"
"""Printed where a figure could not be measured."""

SHOWN = 0.01
"""Fraction of the time below which an op has no row of its own in the profile."""


@click.command("bench", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--prompt", "prompts", type=int, multiple=True, metavar="N",
    help="Tokens of the prompts, sources or texts; may be given several times. [default: 128 and 512]",
)  # fmt: skip
@option("--new", "new_tokens", type=int, metavar="N", help="Tokens to generate. [default: 64]")
@option(
    "--batch", "batch_sizes", type=int, multiple=True, metavar="N",
    help="Texts per call; may be given several times. [default: 1]",
)  # fmt: skip
@option("--rounds", type=int, metavar="N", help="Repetitions of every measurement. [default: 5]")
@execution_options
@cache_option
@option("--profile", is_flag=True, topic=OUTPUT, help="Show the time by op, too.")
@option("--plot", type=click.Path(path_type=Path), topic=OUTPUT, help="Draw a roofline into this PNG file.")
@json_option
def bench_command(bundle: Path, plot: Path | None, as_json: bool, profile: bool, **options: Any) -> None:
    """Measure how fast BUNDLE runs here.

    Every round measures everything once. Figures are medians, with the smallest and the largest of the rounds, and are
    compared with what this machine can do.
    """
    from edgeformer.runtime.measure.benchmarking import benchmark

    if plot is not None:
        _check_plot(plot)
    # Defaults are those of the runtime: pass only the options that were given.
    options = {name: value for name, value in options.items() if value not in (None, ())}
    with progress_bar() as progress:
        result = benchmark(bundle, profile=profile, progress=progress, **options)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result)
    if plot is not None:  # last: where it cannot be drawn, the figures are there
        _draw(result, plot)


def _check_plot(path: Path) -> None:
    """Raise RequestError for a plot that cannot be written, before minutes of measuring."""
    require("matplotlib", "export")
    folder = path.absolute().parent
    if path.suffix.lower() != ".png":
        raise RequestError(f"cannot draw {path}: the plot is a PNG file. Let its name end in .png.")
    if not os.path.isdir(folder):
        raise RequestError(f"cannot write {path}: there is no folder {folder}.")


def _draw(result: "BenchmarkResult", path: Path) -> None:
    from edgeformer.runtime.measure.benchmarking.roofline import draw_roofline

    picture = draw_roofline(result)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}.") from error
    note(f"wrote {path}")


def _show(result: "BenchmarkResult") -> None:
    click.echo(f"{result.name}: {result.precision}, op set {result.ops}")
    click.echo(
        f"{PROVIDERS[result.provider].title}, {_count(result.threads, 'thread')}; median (range) of "
        f"{_count(result.rounds, 'round')}\n"
    )
    for name, text in (("kernels", result.kernels.describe()), *_roof_rows(result), *_startup_rows(result)):
        click.echo(fill(f"{name:<20}{text}", WIDTH, subsequent_indent=" " * 20, break_on_hyphens=False))
    what, new_tokens = MODELS[result.task].reads, result.workloads[0].new_tokens
    click.echo()
    print_table(
        [(*_place(each), *_prefill(each)) for each in result.workloads],
        what, "batch", "TTFT, ms" if new_tokens else "ms", "prefill tokens/s", "fp32 peak", "int8 peak",
    )  # fmt: skip
    if new_tokens:
        click.echo(f"\ndecode of {new_tokens} tokens")
        print_table(
            [(*_place(each), *_decode(each)) for each in result.workloads],
            what, "batch", "tokens/s", "bytes/token", "bandwidth", "fp32 peak",
        )  # fmt: skip
    for workload in result.workloads:
        _show_kernels(what, workload)
    if result.notes:
        click.echo()
    for text in result.notes:
        click.echo(f"– {text}")


def _show_kernels(what: str, workload: "Workload") -> None:
    """Print the time by op, if the workload was profiled."""
    place = f"a {what} of {workload.tokens:,} tokens, batch {workload.batch_size}"
    for phase, name in ((workload.prefill, f"prefill of {place}"), (workload.decode, f"decode step after {place}")):
        if phase is None or phase.kernels is None:
            continue
        click.echo(f"\ntime by op: {name}")
        shown = [each for each in phase.kernels if each.fraction >= SHOWN]
        rows = [_kernel_row(each.op, [each]) for each in shown]
        if rest := phase.kernels[len(shown) :]:
            rows.append(_kernel_row("all others", rest))
        print_table(rows, "op", "fraction", "kernels", "µs each")


def _kernel_row(name: str, kernels: Sequence["Kernels"]) -> tuple[str, ...]:
    count = sum(each.count for each in kernels)
    seconds = sum(each.count * each.seconds for each in kernels) / count
    return name, _percent(sum(each.fraction for each in kernels)), f"{count:,}", _number(1e6 * seconds)


def _roof_rows(result: "BenchmarkResult") -> list[tuple[str, str]]:
    roofs = result.roofs
    if roofs is None:
        return []
    return [
        ("memory bandwidth", _spread(roofs.bandwidth, 1e-9, " GB/s")),
        ("fp32 peak", _spread(roofs.fp32, 1e-9, " GFLOP/s")),
        ("int8 peak", _spread(roofs.int8, 1e-9, " GOP/s")),
    ]


def _startup_rows(result: "BenchmarkResult") -> list[tuple[str, str]]:
    rows = [
        ("load time", _spread(result.load_seconds, 1, " s")),
        ("import time", _spread(result.import_seconds, 1, " s")),
    ]
    memory = result.memory
    if memory is not None:
        rows.append(("peak memory", _bytes(memory.peak_bytes)))
        if memory.private_bytes is not None and memory.file_bytes is not None:
            parts = f"private {_bytes(memory.private_bytes)}, file-backed {_bytes(memory.file_bytes)}"
            rows[-1] = ("peak memory", f"{_bytes(memory.peak_bytes)}; {parts}")
        rows.append(("  before loading", _bytes(memory.before_load_bytes)))
    return rows


def _place(workload: "Workload") -> tuple[str, str]:
    return f"{workload.tokens:,}", str(workload.batch_size)


def _prefill(workload: "Workload") -> tuple[str, ...]:
    phase = workload.prefill
    return (
        _spread(workload.first_token_seconds or workload.seconds, 1e3),
        _spread(phase.tokens_per_second),
        _percent(phase.fp32_fraction),
        _percent(phase.int8_fraction),
    )


def _decode(workload: "Workload") -> tuple[str, ...]:
    phase = workload.decode
    assert phase is not None
    return (
        _spread(phase.tokens_per_second),
        UNKNOWN if phase.bytes_per_token is None else _bytes(phase.bytes_per_token),
        _percent(phase.bandwidth_fraction),
        _percent(phase.fp32_fraction),
    )


def _spread(spread: "Spread", factor: float = 1.0, unit: str = "") -> str:
    middle, low, high = (_number(factor * value) for value in (spread.median, spread.low, spread.high))
    return f"{middle}{unit} ({low}–{high})"


def _number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the point if those are more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{100 * fraction:.0f}%" if fraction >= 0.1 else f"{100 * fraction:.1f}%"


def _bytes(size: float) -> str:
    return f"{_number(size / 1e6)} MB" if size >= 1e6 else f"{_number(size / 1e3)} KB"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
