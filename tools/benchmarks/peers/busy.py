"""Keep processor cores busy beside what is measured, as other programs of a user's machine do."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

SPIN = "while True: pass"
"""The program of a busy process: it computes without a pause, and leaves memory and caches to others."""


@contextmanager
def busy_processes(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run so many processes that never wait, at the priority of this one; they are killed at the end.

    Raises ClickException if one of them ended before that: then what was measured had the machine to itself.
    """
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            stack.callback(process.kill)  # before Popen's own exit, which waits
            processes.append(process)
        yield processes
        if ended := [process.returncode for process in processes if process.poll() is not None]:
            raise click.ClickException(
                f"{len(ended)} of {count} busy processes ended early, with exit code {ended[0]}; no speed is reported, "
                "since it would not be that beside busy ones. Is something killing processes here?"
            )
