"""An edgeformer of any commit, by what it offers to users: the command that exports, and the stream of a text."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.generation import Generate, Generation, timed
from edgeformer.runtime import load_causal_lm

BUNDLE = "bundle"
"""Name of the bundle inside the folder; an export creates its own folder."""


def convert(checkpoint: Path, folder: Path, precision: str) -> None:
    """Export with all defaults. Raises CalledProcessError, after what the command said."""
    command = [sys.executable, "-m", "edgeformer", "export", "--model", str(checkpoint), "-o", str(folder / BUNDLE)]
    subprocess.run([*command, "--precision", precision, "--no-verify"], check=True, stdout=subprocess.DEVNULL)


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the bundle."""
    model = load_causal_lm(folder / BUNDLE, "cpu", threads)

    def run(prompt: list[int], new: int) -> Generation:
        events = model.stream(prompt, max_new_tokens=new, ignore_eos=True).events()
        return timed((event.token_id for event in events), new)

    return run
