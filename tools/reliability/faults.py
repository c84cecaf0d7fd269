"""Kill what writes files at random moments, or let the disk be full at random bytes, and look for what is not whole.

    python tools/reliability/faults.py BUNDLES --cases 200 [--output faults.json]

BUNDLES is a folder with the bundle tiny-llama, which is made there if it is absent. Cases write a bundle (`export`),
one over an older one (`overwrite`), into one (`optimize`), or the shards of a batch job (`shards`: its storage alone,
without Ray). Each gets SIGKILL at a seeded moment, or a library is preloaded (full_disk.c; it takes a C compiler) that
fails all writes behind a seeded number of bytes. Then every name must stand for a whole file or bundle, the old one or
the new; a full disk must end the command with one line on stderr and leave nothing else behind; and the same command
must run again. With --output, the run goes on behind the cases that the file has. Exits with 1 if there was a fault.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # the folders of tools/ are packages

from reliability.signals import COMMANDS, LONGEST, half, make_bundle  # noqa: E402

SHARDS = """
import hashlib, random, sys
from edgeformer.batch.storage import Folder
from edgeformer.errors import RequestError
folder, draw = Folder("shards"), random.Random(0)
try:
    for number in range(100):
        content = draw.randbytes(draw.randrange(1, 50_000))
        folder.write(f"part-{number:08}", content)
        folder.write(f"commits/{number:08}", hashlib.sha256(content).hexdigest().encode())
except RequestError as error:
    sys.exit(f"error: {error}")
"""
"""A program that writes as a batch job does: shards, and behind each its commit."""

LINES = {
    **{name: ["-m", "edgeformer", *COMMANDS[name]] for name in ("export", "overwrite", "optimize")},
    "shards": ["-c", SHARDS],
}
"""Arguments of Python by the name of what is written; they run in a folder that holds the bundle tiny-llama."""

FAULTS = ("half", "raw", "hang", "again")
"""Kinds of endings that must not occur: something not whole, more than a line on stderr, no end, no second run."""


class Run(NamedTuple):
    """How a command ended."""

    code: int
    stderr: str


class Full(NamedTuple):
    """A disk that is full. library: full_disk.c, compiled."""

    library: Path
    bytes: int


def compile_full_disk(folder: Path) -> Path:
    """Compile full_disk.c in a folder; return the library."""
    library = folder / "full_disk.so"
    source = Path(__file__).with_name("full_disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


def run(name: str, folder: Path, killed_after: float | None = None, full: Full | None = None) -> Run:
    """Run a command in a folder, kill it after a time in s, or give it a full disk."""
    environment = {**os.environ, "EDGEFORMER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    if full is not None:
        environment |= {"LD_PRELOAD": str(full.library), "FAULT_BYTES": str(full.bytes), "FAULT_FOLDER": str(folder)}
    line = [sys.executable, *LINES[name], *(["--overwrite"] if (folder / "made").exists() else [])]
    process = subprocess.Popen(
        line, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    if killed_after is not None:
        time.sleep(killed_after)
        process.send_signal(signal.SIGKILL)
    try:
        stderr = process.communicate(timeout=LONGEST)[1].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Run(124, "")
    return Run(process.returncode, stderr)


def not_whole(name: str, folder: Path, leftovers: bool) -> str:
    """Return what is not whole in a folder; empty if all is. leftovers: hidden files may lie there."""
    if name != "shards":
        return half(folder, leftovers=leftovers)
    import hashlib

    shards = folder / "shards"
    for commit in sorted((shards / "commits").glob("[!.]*")):
        part = shards / f"part-{commit.name}"
        if not part.is_file() or hashlib.sha256(part.read_bytes()).hexdigest() != commit.read_text():
            return f"{part.name} is not what its commit says"
    hidden = [path.name for path in shards.rglob(".*")]
    return f"{hidden[0]} was left behind" if hidden and not leftovers else ""


def run_case(name: str, bundles: Path, killed_after: float | None, full: Full | None) -> tuple[str, str]:
    """Return the kind of ending of one case, and what was wrong."""
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        folder = Path(scratch)
        if name != "shards":
            shutil.copytree(bundles / "tiny-llama", folder / "tiny-llama")
        ended = run(name, folder, killed_after, full)
        if ended.code == 124:
            return "hang", f"over {LONGEST:g} s"
        lines = [each for each in ended.stderr.splitlines() if each.strip()]
        killed = ended.code == -signal.SIGKILL
        if wrong := not_whole(name, folder, leftovers=killed):
            return "half", wrong
        if not killed and ended.code and (len(lines) != 1 or not lines[0].startswith("error: ")):
            return "raw", ended.stderr[-1500:]
        again = run(name, folder)
        if again.code:
            return "again", again.stderr[-1500:]
        if wrong := not_whole(name, folder, leftovers=name == "shards"):
            return "half", f"after a second run: {wrong}"
        return ("killed" if killed else "refused" if ended.code else "done"), ""


def measure(bundles: Path, names: list[str]) -> dict[str, tuple[float, int]]:
    """Return the seconds that each command takes here, uninterrupted, and the bytes that it writes, about."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
            folder = Path(scratch)
            if name != "shards":
                shutil.copytree(bundles / "tiny-llama", folder / "tiny-llama")
            start = time.monotonic()
            ended = run(name, folder)
            if ended.code:
                raise click.ClickException(f"{name} does not run by itself: {ended.stderr}")
            seconds = time.monotonic() - start
            written = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            found[name] = (seconds, sum(written) // (2 if name == "export" else 1))
    return found


def run_cases(
    bundles: Path,
    cases: range,
    measured: Mapping[str, tuple[float, int]],
    library: Path,
    told: Callable[[str], None] = click.echo,
) -> dict[str, Any]:
    """Run cases over commands; return counts by command and kind of ending, and the faults."""
    counts: Counter[str] = Counter()
    faults = []
    for case in cases:
        draw = random.Random(f"faults/{case}")
        name = draw.choice(sorted(measured))
        seconds, size = measured[name]
        kills = draw.random() < 0.5
        delay, room = draw.uniform(0, seconds), int(size * draw.random() ** 2)
        kind, detail = run_case(name, bundles, delay if kills else None, None if kills else Full(library, room))
        counts[f"{name} {kind}"] += 1
        if kind in FAULTS:
            fault = f"killed after {delay:.2f} s" if kills else f"full after {room} bytes"
            faults.append({"case": case, "command": name, "fault": fault, "kind": kind, "detail": detail})
            told(f"{case} {name}, {fault}: {kind}: {detail}")
    return {"next": cases.stop, "counts": dict(counts), "faults": faults}


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path))
@click.option("--cases", default=40, show_default=True, help="Cases in this run.")
@click.option("--command", "names", multiple=True, type=click.Choice(list(LINES)), help="[default: all]")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file that this run continues and updates.")
def main(bundles: Path, cases: int, names: tuple[str, ...], output: Path | None) -> None:
    """Kill writing commands, or fill their disk, at random moments."""
    make_bundle(bundles)
    result: dict[str, Any] = {"next": 0, "counts": {}, "faults": []}
    if output and output.is_file():
        result = json.loads(output.read_text())
    measured = measure(bundles, list(names or LINES))
    with tempfile.TemporaryDirectory() as folder:
        library = compile_full_disk(Path(folder))
        for case in range(result["next"], result["next"] + cases):
            ran = run_cases(bundles, range(case, case + 1), measured, library)
            counts = Counter(result["counts"]) + Counter(ran["counts"])
            result = {"next": ran["next"], "counts": dict(counts), "faults": result["faults"] + ran["faults"]}
            if output:
                output.write_text(json.dumps(result, indent=1) + "\n")
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(result["counts"].items()))
    click.echo(f"{result['next']} cases: {shown}")
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
