"""Compare the time to the first token behind a picture with other runtimes, and of another question about it.

    python tools/checkpoints/random_vision.py smolvlm-500m /tmp/smolvlm
    edgeformer export --model /tmp/smolvlm --output /tmp/ours --precision int4 --tower-precision int8
    export PYTHONPATH=llama.cpp:llama.cpp/gguf-py
    python tools/benchmarks/pictures/convert_llama_cpp.py /tmp/smolvlm /tmp/theirs
    python tools/benchmarks/compare_pictures.py edgeformer=python:/tmp/ours llama.cpp=/opt/llama/bin/python:/tmp/theirs

Each contestant is NAME=PYTHON:FOLDER; a name begins with edgeformer, llama.cpp or OpenVINO GenAI, which says what runs
it. Every round starts each of them in turn, in a process of its own, which answers once before it is timed; one that
keeps features of pictures answers about another picture then. The time includes the picture's processor, the tower and
the prompt, and not the decoding of a file. Prints medians with their ranges and ratios to the first contestant's;
--json also writes them for page.py.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from benchmarks.page import markdown, spread

PROGRAMS = {
    "edgeformer": "edgeformer_run.py", "llama.cpp": "llama_cpp_run.py", "OpenVINO GenAI": "openvino_genai_run.py",
}  # fmt: skip
"""Programs in pictures/ by the beginning of a contestant's name."""
COLUMNS = ("runtime", "picture", "first token, s", "of ours", "another question, s", "prompt tokens", "peak, MiB")


def drawn(side: int) -> np.ndarray:
    """Return a picture [side, side, 3] of smooth colours and noise, uint8."""
    ramp = np.linspace(0, 255, side)
    channels = np.stack([np.add.outer(ramp, ramp) / 2, np.subtract.outer(ramp, ramp) % 256, np.outer(ramp, ramp) / 255])
    noise = np.random.default_rng(side).normal(0, 8, (side, side, 3))
    return (channels.transpose(1, 2, 0) + noise).clip(0, 255).astype(np.uint8)


def measure(contestant: str, picture: Path, threads: int) -> dict[str, float]:
    """Run one contestant once. Raises ClickException with the end of what it said where it fails."""
    name, _, rest = contestant.partition("=")
    python, _, folder = rest.partition(":")
    program = next((file for begin, file in PROGRAMS.items() if name.startswith(begin)), None)
    if program is None or not folder:
        raise click.ClickException(f"{contestant} is not NAME=PYTHON:FOLDER, NAME one of {', '.join(PROGRAMS)}.")
    command = [python, str(Path(__file__).parent / "pictures" / program), folder, str(picture), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name} failed:\n" + "\n".join(done.stderr.splitlines()[-20:]))
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(values: list[float]) -> dict[str, float]:
    """Return the median and the range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("contestants", nargs=-1, required=True)
@click.option("--side", type=int, multiple=True, default=(512, 1024), help="Pixels of a side; repeatable.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Rounds.")
@click.option("--threads", type=int, default=2, show_default=True, help="Threads of each.")
@click.option("--title", default="", help="The model, for the page.")
@click.option("--note", default="", help="A sentence for the page.")
@click.option("--json", "json_file", type=Path, help="Also write the figures to this file.")
def main(
    contestants: tuple[str, ...], side: tuple[int, ...], rounds: int, threads: int, title: str, note: str,
    json_file: Path | None,
) -> None:  # fmt: skip
    """Compare."""
    names, rows = [each.partition("=")[0] for each in contestants], []
    with tempfile.TemporaryDirectory() as folder:
        for pixels in side:
            picture = Path(folder) / f"{pixels}.npy"
            np.save(picture, drawn(pixels))
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for _ in range(rounds):
                for name, contestant in zip(names, contestants, strict=True):
                    runs[name].append(measure(contestant, picture, threads))
            rows += [row_of(name, pixels, runs[name], runs[names[0]]) for name in names]
    click.echo("\n".join(markdown(COLUMNS, rows)))
    if json_file is not None:
        table = {"columns": COLUMNS, "rows": rows}
        facts: dict[str, Any] = {"tool": "compare_pictures", "title": title, "environment": environment()}
        facts |= {"rounds": rounds, "threads": threads, "note": note, "tables": [table]}
        json_file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def row_of(name: str, pixels: int, runs: list[dict[str, float]], ours: list[dict[str, float]]) -> list[str]:
    """Return the row of a contestant; ratios are of rounds."""
    ratios = [theirs["first"] / own["first"] for theirs, own in zip(runs, ours, strict=True)]
    return [
        name,
        f"{pixels} × {pixels}",
        spread(figures([run["first"] for run in runs]), 2),
        "" if runs is ours else spread(figures(ratios), 2),
        spread(figures([run["second"] for run in runs]), 3),
        f"{runs[0]['tokens']:,}",
        f"{statistics.median(run['peak_mib'] for run in runs):,.0f}",
    ]


if __name__ == "__main__":
    main()
