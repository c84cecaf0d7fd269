"""Call a function in another process, beside the rest of an export.

    this process      imports ─ opens ─ captures ─ writes ─ verifies ─┤ result ├─ seals
    the other one     imports ─ opens ─ compares ─────────────────────┘

Both are Python on one core for most of the time. The other process is quiet where multiprocessing is not: Ctrl-C does
not reach it, it ends with this one, however this one ends, and what is printed there is printed here.
"""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Generic, NamedTuple, Self, TypeVar, cast

from edgeformer.errors import EdgeformerError

T = TypeVar("T")

PROGRAM = "import sys; sys.path[:] = {path!r}; from edgeformer.export.worker_process import main; main()"
"""The other process imports from where this one does, and not from the current folder."""


class Outcome(NamedTuple):
    """The value or the error of a call, and the warnings that Python showed meanwhile: text, file, line."""

    value: Any = None
    error: Exception | None = None
    warned: tuple[tuple[str, str, int], ...] = ()


class WorkerProcess(Generic[T]):
    """A process that calls a function once: a context, at whose end the process is gone, and all that it wrote."""

    def __init__(self, purpose: str, function: Callable[..., T], *arguments: Any, environment: Mapping[str, str] = {}):
        """Start the process. purpose: what it does, for people; function, arguments: are pickled."""
        self._purpose, self._call = purpose, partial(function, *arguments)
        self._outcome: Outcome | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="edgeformer-worker-")
        self._printed = Path(self._folder.name) / "printed.txt"
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(path=sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        with suppress(OSError):  # of a process that has ended: `result` sees that
            self._input.write(pickle.dumps((self._folder.name, gc.get_threshold(), self._call)))
            self._input.flush()

    def raise_failure(self) -> None:
        """Raise what the function raised, if it has done so already."""
        if self._process.poll() == 0:
            self.result()

    def result(self) -> T:
        """Wait for the function; return what it returned, or raise what it raised.

        Where the process was killed, for want of memory for example, the function is called here.
        """
        if self._outcome is None:
            self._outcome = self._receive()
        if self._outcome.error is not None:
            raise self._outcome.error from None
        value: T = self._outcome.value
        return value

    def _receive(self) -> Outcome:
        received = self._output.read()
        code = self._process.wait()
        sys.stderr.write(self._printed.read_text(encoding="utf-8", errors="replace"))
        if code != 0:
            warnings.warn(
                f"the process for {self._purpose} ended early (code {code}), perhaps for lack of memory; this is done "
                "again, after the rest.",
                stacklevel=1,
            )
            return Outcome(self._call())
        outcome: Outcome = pickle.loads(received)
        for text, file, line in outcome.warned:  # filters and repetitions are behind them
            warnings.showwarning(UserWarning(text), UserWarning, file, line)
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, EdgeformerError):  # in one process, that of the function came first
                self.result()
        finally:
            self._process.kill()
            self._process.wait()
            self._input.close()
            self._output.close()
            self._folder.cleanup()


@contextmanager
def sharing_cores() -> Iterator[None]:
    """Let PyTorch use half of its threads. Those of two processes wait for each other, spinning, on the same cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // 2))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Be the other process: read a call from stdin, and write its outcome to what was stdout."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not lie between
    tempfile.tempdir, threshold, call = pickle.load(sys.stdin.buffer)
    gc.set_threshold(*threshold)
    Thread(target=_end_with_parent, args=(tempfile.tempdir,), daemon=True).start()
    with warnings.catch_warnings(record=True) as caught:
        outcome = _outcome(call)
    warned = tuple((str(each.message), each.filename, each.lineno) for each in caught)
    with output:
        output.write(pickle.dumps(outcome._replace(warned=warned)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # temporary files are the parent's to remove


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(call())
    except EdgeformerError as error:
        error.add_note(traceback.format_exc())  # shown with --debug
        return Outcome(error=error)
    except Exception:  # a fault of ours, of a class that may not be pickled
        return Outcome(error=RuntimeError(traceback.format_exc()))


def _end_with_parent(folder: str) -> None:
    """End this process, and remove its files, when the parent is gone: stdin is closed then, however it ended."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
