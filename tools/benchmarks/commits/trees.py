"""The tree of a commit, its kernels, and a Python that imports both before all that is installed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).parents[3]
ADAPTER = Path(__file__).parent / "any_edgeformer.py"
SAID_LINES = 10
"""Last lines of pip's output that an error quotes."""


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a new folder, as long as the context lasts. Raises ClickException."""
    git = ["git", "-C", str(ROOT), "worktree"]
    command = [*git, "add", "--detach", str(folder), commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"git does not check out {commit}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], capture_output=True, check=True)


def build_kernels(tree: Path, folder: Path) -> None:
    """Install a tree's kernels into a folder. Raises ClickException with the end of pip's output."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), str(tree / "kernels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-SAID_LINES:])
        raise click.ClickException(f"the kernels of {tree} are not built; --no-kernels leaves them out:\n{said}")


def interpreter(folder: Path, modules: Sequence[Path], kernels: bool) -> Path:
    """Write a program that is this Python with these folders of modules before all others; return its path."""
    variables = {"PYTHONPATH": os.pathsep.join(map(str, modules))}
    if not kernels:
        variables["EDGEFORMER_KERNELS"] = "0"
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    program = folder / "python"
    program.write_text(f'#!/bin/sh\n{settings} exec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program
