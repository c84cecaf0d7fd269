"""Start workers in the interpreters of their runtimes, and stop each one while another computes."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NoReturn

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.generation import Generation
from benchmarks.peers.registry import Peer

TOOLS = Path(__file__).parents[2]

SAID_LINES = 20
"""Lines of a worker's stderr that an error message quotes."""

WAKING_TOKENS = 2
"""Tokens that a worker reads and generates, untimed, before each measured generation: see Worker.generate."""

STAMP = "made_from.json"
"""File in a complete folder that says what the model was converted from and with which versions."""


def command_of(python: Path, verb: str, *arguments: object) -> list[str]:
    """Return the command line of one worker. Its working directory has to be TOOLS."""
    return [str(part) for part in (python, "-m", "benchmarks.peers.worker", verb, *arguments)]


def environment_of(threads: int) -> dict[str, str]:
    """Return environment variables for runtimes that read OpenMP's number of threads; others take an option."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1"}


def probe(python: Path, peer: Peer) -> tuple[list[str], dict[str, str]]:
    """Return the modules that an interpreter lacks for a peer, and the versions of those it has."""
    command = command_of(python, "probe", ",".join(peer.imports), ",".join(peer.packages))
    done = subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{python} does not run the workers:\n{last_lines(done.stderr)}")
    found = json.loads(done.stdout)
    return found["missing"], found["versions"]


def convert(
    name: str,
    peer: Peer,
    python: Path,
    checkpoint: Path,
    folder: Path,
    precision: str,
    versions: dict[str, str],
    settings: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Have a peer write its model into a folder, unless the folder holds one of the same checkpoint and versions.

    settings: environment variables that its converter reads.

    The folder ends up complete or absent. Raises ClickException with the end of the peer's stderr if it fails.
    """
    stamp = {
        "checkpoint": {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files_of(checkpoint)},
        "versions": versions,
        "converter": hashlib.sha256(peer.file.read_bytes()).hexdigest(),
        **settings,
    }
    if peer.keep and (folder / STAMP).is_file() and json.loads((folder / STAMP).read_text(encoding="utf-8")) == stamp:
        return
    shutil.rmtree(folder, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    command = command_of(python, "convert", peer.file, checkpoint, partial, precision)
    variables = {**os.environ, **settings}
    done = subprocess.run(command, cwd=TOOLS, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise click.ClickException(f"{name} did not convert the model to {precision}:\n{last_lines(done.stderr)}")
    (partial / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
    partial.rename(folder)


def read_texts(
    name: str,
    peer: Peer,
    python: Path,
    checkpoint: Path,
    folder: Path,
    precision: str,
    threads: int,
    texts: Sequence[Sequence[int]],
    vocab_size: int,
) -> Iterator[NDArray[np.float32]]:
    """Yield logits [S, V] after the S tokens of each text, computed by a peer whose model is in `folder`.

    Raises ClickException with the end of the peer's stderr if it fails or returns another number of logits.
    """
    with tempfile.TemporaryDirectory(prefix="peers.") as temporary:
        asked, told = Path(temporary) / "texts.json", Path(temporary) / "logits"
        asked.write_text(json.dumps(texts), encoding="utf-8")
        command = command_of(python, "logits", peer.file, checkpoint, folder, precision, threads, asked, told)
        done = subprocess.run(
            command, cwd=TOOLS, env=environment_of(threads), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise click.ClickException(f"{name} did not read the texts at {precision}:\n{last_lines(done.stderr)}")
        ends = np.cumsum([len(text) for text in texts])
        if (size := told.stat().st_size) != 4 * ends[-1] * vocab_size:
            raise click.ClickException(f"{name} returned {size} bytes of logits for {ends[-1]} tokens of {vocab_size}.")
        yield from np.split(np.memmap(told, np.float32, "r").reshape(-1, vocab_size), ends[:-1])


def files_of(checkpoint: Path) -> Iterable[Path]:
    """Return the files of a checkpoint that decide what its model computes."""
    return [checkpoint / "config.json", *sorted(checkpoint.glob("*.safetensors"))]


def last_lines(text: str) -> str:
    """Return the last SAID_LINES lines of a text."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-SAID_LINES:]) or "it said nothing."


class Worker:
    """A process with a runtime and its loaded model, stopped (SIGSTOP) while it has nothing to do.

    Idle threads of onnxruntime and OpenMP spin for a while, and OpenVINO and torch have thread pools of their own. A
    stopped process takes no core from the one that is being measured, so no runtime needs thread options that its users
    do not set.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]", said: IO[str]):
        self.name, self._process, self._said = name, process, said
        self._answer()  # the model is loaded
        self._process.send_signal(signal.SIGSTOP)

    def generate(self, prompt: Sequence[int], new: int) -> Generation:
        """Continue a prompt. Raises ClickException with the end of the worker's stderr if it exits.

        Before the clock starts, WAKING_TOKENS are generated: the memory of a stopped process leaves the processor's
        caches, and the pages of mapped files may have been dropped.
        """
        self._process.send_signal(signal.SIGCONT)
        self._ask(prompt[-WAKING_TOKENS:], WAKING_TOKENS)
        turn = self._ask(prompt, new)
        self._process.send_signal(signal.SIGSTOP)
        return turn

    def _ask(self, prompt: Sequence[int], new: int) -> Generation:
        request = json.dumps({"prompt": list(prompt), "new": new}) + "\n"
        assert self._process.stdin is not None
        try:
            # Unbuffered: a buffer would be flushed again on close, into a pipe that may be broken.
            os.write(self._process.stdin.fileno(), request.encode())
        except BrokenPipeError:
            self._ended()
        return Generation(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._ended()
        return json.loads(line)

    def _ended(self) -> NoReturn:
        code = self._process.wait()
        self._said.seek(0)
        raise click.ClickException(
            f"the worker of {self.name} ended with exit code {code}. Its last output:\n{last_lines(self._said.read())}"
        )


@contextmanager
def start(
    name: str, peer: Peer, python: Path, checkpoint: Path, folder: Path, precision: str, threads: int
) -> Iterator[Worker]:
    """Start a worker and load its model. It is killed at the end, because a stopped process does not see EOF."""
    command = command_of(python, "serve", peer.file, checkpoint, folder, precision, threads)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(
            command,
            cwd=TOOLS,
            env=environment_of(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        try:
            yield Worker(name, process, said)
        finally:
            process.kill()
