"""Send SIGINT and SIGTERM, or SIGKILL, to commands at random moments, and count how they end.

    python tools/reliability/signals.py BUNDLES --cases 120 [--kill] [--output signals.json]

BUNDLES is a folder with the bundle tiny-llama, which is made there if it is absent. Each case starts a command in a
process of its own and sends one signal at a seeded moment between the start of the interpreter and the command's usual
end. The command must end with 130 or 143, or by the signal, or be done; with one line on stderr at most, and leave
either no bundle or a whole one. With --kill it is killed instead: bundles must be whole then, too, and what it leaves
must be gone when the same command has run again. With --output, the run goes on behind the cases that the file has.
Exits with 1 if there was a fault.

Before the command's first line, Python itself prints a traceback when SIGINT comes: such cases are counted as `python`.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # the folders of tools/ are packages

COMMANDS = {
    "models": ["models"],
    "info": ["info", "tiny-llama"],
    "check": ["check", "tiny-llama"],
    "run": ["run", "tiny-llama", "Once upon a time", "--max-new-tokens", "20"],
    "verify": ["verify", "tiny-llama", "--quick"],
    "export": ["export", "--model", "tiny-llama", "-o", "made", "--no-verify"],
    "overwrite": ["export", "--model", "tiny-llama", "-o", "tiny-llama", "--no-verify", "--overwrite"],
    "optimize": ["optimize", "tiny-llama"],
}
"""Command lines by name; they run in a folder that holds the bundle tiny-llama."""

WRITING = ("export", "overwrite", "optimize")
"""Commands that write bundles, or into them."""

FAULTS = ("raw", "code", "half", "hang")
"""Kinds of endings that must not occur: more than a line on stderr, another exit code, half a bundle, no end."""

PACKAGES = ("edgeformer", "export", "runtime")
FIRST = ("edgeformer/__init__", "edgeformer/__main__", "edgeformer/cli/__init__", "edgeformer/cli/start")
"""Files that Python reads before the command's first line runs."""

LONGEST = 120.0
"""Seconds after which a command that was sent a signal hangs."""


class Ending(NamedTuple):
    """How a case ended. kind: ended, done, python, or a fault. detail: what was wrong."""

    kind: str
    detail: str = ""


def run_case(line: list[str], bundles: Path, number: int, delay: float) -> Ending:
    """Run a command line of edgeformer, send it a signal after a delay in s, and say how it ended."""
    with tempfile.TemporaryDirectory(prefix="signals-") as scratch:
        folder = Path(scratch)
        shutil.copytree(bundles / "tiny-llama", folder / "tiny-llama")
        process = subprocess.Popen(
            [sys.executable, "-m", "edgeformer", *line],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "EDGEFORMER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"},
        )
        try:
            time.sleep(delay)
            process.send_signal(number)
            stderr = process.communicate(timeout=LONGEST)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Ending("hang", f"over {LONGEST:g} s after signal {number}")
        killed = process.returncode == -signal.SIGKILL
        if wrong := half(folder, leftovers=killed) or (killed and _run_again(line, folder)):
            return Ending("half", wrong)
        return judge(process.returncode, number, stderr)


def judge(code: int, number: int, stderr: str) -> Ending:
    """Return how a command ended by its exit code and its stderr. number: the signal that it got."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    shown = stderr[-1500:]
    if any("Traceback" in line for line in lines):
        ours = [line for line in lines if any(f'File "{ROOT / name}/' in line for name in PACKAGES)]
        early = number == signal.SIGINT and all(any(f"{name}.py" in line for name in FIRST) for line in ours)
        return Ending("python" if early else "raw", shown)
    if len(lines) > 1:
        return Ending("raw", shown)
    if code == 0:
        return Ending("done")
    if code not in (128 + number, -number):
        return Ending("code", f"exit code {code} after signal {number}: {shown}")
    return Ending("ended")


def _run_again(line: list[str], folder: Path) -> str:
    """Run a command that was killed once more; return what is not whole or left over behind it."""
    more = ["--overwrite"] if "made" in line else []
    environment = {**os.environ, "EDGEFORMER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "edgeformer", *line, *more], cwd=folder, capture_output=True, text=True, env=environment
    )
    return half(folder) or ("" if done.returncode == 0 else f"it does not run again: {done.stderr[-500:]}")


def half(folder: Path, leftovers: bool = False) -> str:
    """Return what is not whole in a folder of bundles; empty if all are. leftovers: temporary folders may lie there."""
    if not (folder / "tiny-llama").is_dir():
        return "the bundle that was there is gone"
    from edgeformer.errors import BundleError
    from edgeformer.manifest.manifest import Manifest
    from edgeformer.manifest.parts import sha256

    for path in folder.iterdir():
        if path.name == "cache":
            continue
        if path.name.startswith("."):
            if leftovers:
                continue
            return f"{path.name} was left behind"
        try:
            manifest = Manifest.read(path)
            manifest.check_sizes(path)
            changed = [name for name, entry in manifest.files.items() if sha256(path / name) != entry.sha256]
            if changed:
                return f"{path.name}/{changed[0]} is not what the manifest says"
        except BundleError as error:
            return str(error)
        hidden = [each.name for each in path.iterdir() if each.name.startswith(".")]
        if hidden and not leftovers:
            return f"{path.name}/{hidden[0]} was left behind"
    return ""


def measure(bundles: Path, names: list[str]) -> dict[str, float]:
    """Return the seconds that each command takes here, uninterrupted."""
    seconds = {}
    for name in names:
        start = time.monotonic()
        ending = run_case(COMMANDS[name], bundles, 0, 0.0)  # signal 0 is none
        if ending.kind != "done":
            raise click.ClickException(f"{name} does not run by itself: {ending}")
        seconds[name] = time.monotonic() - start
    return seconds


def run_cases(
    bundles: Path,
    cases: range,
    seconds: Mapping[str, float],
    told: Callable[[str], None] = click.echo,
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> dict[str, Any]:
    """Run cases over commands, whose durations are given; return counts by kind of ending, and the faults."""
    counts: Counter[str] = Counter()
    faults = []
    for case in cases:
        draw = random.Random(f"signals/{case}")
        name = draw.choice(sorted(seconds))
        number = draw.choice(numbers)
        delay = draw.uniform(0, seconds[name])
        ending = run_case(COMMANDS[name], bundles, number, delay)
        counts[ending.kind] += 1
        if ending.kind in FAULTS:
            faults.append({"case": case, "command": name, "signal": int(number), "delay": delay, **ending._asdict()})
            told(f"{case} {name}, {number.name} after {delay:.2f} s: {ending.kind}: {ending.detail}")
    return {"next": cases.stop, "counts": dict(counts), "faults": faults}


def make_bundle(bundles: Path) -> None:
    """Make the bundle tiny-llama in a folder of bundles, if it is absent."""
    if not (bundles / "tiny-llama").is_dir():
        from edgeformer.export import export_model

        export_model("tiny-llama", bundles / "tiny-llama", verify=None)


@click.command()
@click.argument("bundles", type=click.Path(path_type=Path))
@click.option("--cases", default=40, show_default=True, help="Cases in this run.")
@click.option("--command", "names", multiple=True, type=click.Choice(list(COMMANDS)), help="[default: all]")
@click.option("--kill", is_flag=True, help="Send SIGKILL to commands that write.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file that this run continues and updates.")
def main(bundles: Path, cases: int, names: tuple[str, ...], kill: bool, output: Path | None) -> None:
    """Send signals to commands at random moments."""
    make_bundle(bundles)
    before: dict[str, Any] = {"next": 0, "counts": {}, "faults": []}
    if output and output.is_file():
        before = json.loads(output.read_text())
    first = before["next"]
    chosen = list(names or (WRITING if kill else COMMANDS))
    numbers = (signal.SIGKILL,) if kill else (signal.SIGINT, signal.SIGTERM)
    ran = run_cases(bundles, range(first, first + cases), measure(bundles, chosen), numbers=numbers)
    counts = dict(Counter(before["counts"]) + Counter(ran["counts"]))
    result = {"next": ran["next"], "counts": counts, "faults": before["faults"] + ran["faults"]}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(f"{result['next']} signals: {', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}")
    if ran["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
