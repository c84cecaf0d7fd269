"""Measure the duration and the peak memory of an export.

    python tools/benchmarks/bench_export.py --model /tmp/tinyllama-1.1b --workdir /tmp

The export runs in a child process. The parent samples /proc/<pid>/status of the child for two kinds of memory:

- private: RssAnon + RssShmem, which the machine must have;
- file-backed: RssFile, memory-mapped checkpoints and libraries, which the system may drop and read again.

Both are peaks of samples, so a peak shorter than the interval can be missed. The peak of their sum is the kernel's own
(VmHWM) and exact. The bundle is written below --workdir and removed. Prints seconds, and memory in MiB.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click
from rich.table import Table

from edgeformer.errors import EdgeformerError
from edgeformer.manifest.parts import Precision

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.command import publish
from benchmarks.environment import environment

INTERVAL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The child's report: memory after importing the exporter, seconds of `export_model`, facts of the bundle."""

    import_seconds: float
    import_private_bytes: int
    export_seconds: float
    source: str
    bundle_bytes: int
    parity: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Resident memory of a process in bytes. `peak_total` is the kernel's own peak of the sum (VmHWM)."""

    private: int
    file_backed: int
    peak_total: int

    @classmethod
    def of(cls, pid: int) -> "Memory":
        """Read /proc/<pid>/status."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)

        def read(name: str) -> int:
            return int(fields[name].split()[0]) * 1024  # in kB

        return cls(private=read("RssAnon") + read("RssShmem"), file_backed=read("RssFile"), peak_total=read("VmHWM"))


def export_once(model: str, output: Path, precision: Precision, verify: bool) -> Exported:
    """Export a model in the calling process."""
    start = time.perf_counter()
    from edgeformer.export import export_model

    imported, memory = time.perf_counter(), Memory.of(os.getpid())
    result = export_model(model, output, precision=precision, verify="quick" if verify else None)
    return Exported(
        import_seconds=imported - start,
        import_private_bytes=memory.private,
        export_seconds=result.seconds,
        source=result.manifest.provenance.source,
        bundle_bytes=sum(entry.bytes for entry in result.manifest.files.values()),
        parity=result.manifest.parity,
    )


def watch(future: "Future[Exported]", pid: int) -> list[Memory]:
    """Sample a process until its work is done."""
    samples = []
    while not future.done():
        samples.append(Memory.of(pid))
        time.sleep(INTERVAL_SECONDS)
    return [*samples, Memory.of(pid)]


def bench_export(model: str, workdir: Path, precision: Precision, verify: bool) -> tuple[Exported, list[Memory]]:
    """Export to a temporary folder below `workdir` in a new process; return its facts and the memory samples."""
    folder = Path(tempfile.mkdtemp(prefix="bench_export.", dir=workdir))
    try:
        # Spawned, because a forked process would count this one's memory as its own.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
            pid = executor.submit(os.getpid).result()
            future = executor.submit(export_once, model, folder / "bundle", precision, verify)
            samples = watch(future, pid)
            return future.result(), samples
    finally:
        shutil.rmtree(folder)


def print_report(data: dict[str, Any], file: Path | None) -> None:
    """Print the figures as a table."""
    peaks = data["peak_bytes"]
    rows = {
        "export": f"{data['export_seconds']:.2f} s",
        "import before it": f"{data['import_seconds']:.2f} s",
        "bundle": f"{data['bundle_bytes'] / 1e6:,.1f} MB",
        "private memory after the imports": f"{data['import_private_bytes'] / 1e6:,.1f} MB",
        "peak private memory (RssAnon + RssShmem)": f"{peaks['private'] / 1e6:,.1f} MB",
        "peak file-backed memory (RssFile)": f"{peaks['file_backed'] / 1e6:,.1f} MB",
        "peak of their sum (VmHWM)": f"{peaks['total'] / 1e6:,.1f} MB",
    }
    verified = "verified" if data["verified"] else "not verified"
    table = Table(title=f"{data['source']}, {data['precision']}, {verified}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    publish(data, file, table, data["method"])


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("--model", required=True, help="A preset, a model folder, or a hub id.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True)
@click.option("--no-verify", is_flag=True, help="Skip the comparison with PyTorch.")
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=tempfile.gettempdir(),
    show_default=True,
    help="Folder for the temporary bundle.",
)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def main(model: str, precision: Precision, no_verify: bool, workdir: Path, file: Path | None) -> None:
    """Measure one export."""
    if not Path("/proc/self/status").is_file():
        raise click.ClickException("memory is read from /proc/<pid>/status, which this system does not have.")
    try:
        exported, samples = bench_export(model, workdir, precision, verify=not no_verify)
    except EdgeformerError as error:
        raise click.ClickException(str(error)) from None
    data = asdict(exported) | {
        "precision": precision,
        "verified": not no_verify,
        "peak_bytes": {
            "private": max(sample.private for sample in samples),
            "file_backed": max(sample.file_backed for sample in samples),
            "total": samples[-1].peak_total,
        },
        "method": f"{len(samples)} samples of /proc/<pid>/status, one every {1000 * INTERVAL_SECONDS:.0f} ms",
        "environment": environment(),
    }
    print_report(data, file)


if __name__ == "__main__":
    main()
