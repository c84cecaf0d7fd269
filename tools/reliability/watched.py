"""Run cases in forked processes with limits of time and memory, and say how each ended.

A process runs cases one after the other until one hangs or kills it; the next process goes on behind that case.
Python's audit hook reports files that are opened outside the case's folder, programs that are started, and connections.
"""

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from edgeformer.errors import EdgeformerError

ROOT = Path(__file__).parents[2]

LONGEST = 4000
"""Characters of an error that still is a clear one; an error that holds a file's content is none."""

LOOK = 0.5
"""Seconds between two looks at the processor time of a case."""

_FORBIDDEN = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "socket.connect", "pickle.find_class")
_SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/null",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/etc/os-release",
    "/usr/lib/os-release",
)


@dataclass(frozen=True)
class Verdict:
    """How a case ended.

    Attributes:
        case: number of the case.
        kind: ok, error (a clear one), or a fault: raw, long, hang, memory, crash, escape.
        detail: the error's text; of a fault, its type and place.
        peak_bytes: most memory that the process held during the case, above what it held before.
    """

    case: int
    kind: str
    detail: str
    peak_bytes: int


FAULTS = ("raw", "long", "hang", "memory", "crash", "escape")
"""Kinds of verdicts that must not occur."""


class Limits(NamedTuple):
    """Limits of a case.

    seconds: of processor time that it may take; on a busy machine, a slow case is none that hangs. waiting: seconds on
    the wall until one that computes nothing hangs, too. address_space: bytes that it may ask for. peak: bytes that it
    may use at once.
    """

    seconds: float = 10.0
    waiting: float = 300.0
    address_space: int = 3 << 30
    peak: int = 1 << 30


USUAL = Limits()


def run_cases(
    cases: Sequence[int], task: Callable[[int], tuple[Path, Callable[[], Any]]], limits: Limits = USUAL
) -> Iterator[Verdict]:
    """Yield the verdict of each case.

    task: makes a case's folder, which is the only one that it may touch, and returns it with the call to watch.
    """
    rest = list(cases)
    while rest:
        done = 0
        for verdict in _one_process(rest, task, limits):
            done += 1
            yield verdict
        rest = rest[done:]


def _one_process(
    cases: Sequence[int], task: Callable[[int], tuple[Path, Callable[[], Any]]], limits: Limits
) -> Iterator[Verdict]:
    """Run cases in a forked process until it ends; a case that it dies of has a verdict, too."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:  # whatever happens, the copy of the caller must not go on in this process
            with os.fdopen(writing, "w") as pipe:
                _child(cases, task, limits, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    done = 0
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        pending, watch = b"", _Stopwatch(process)
        try:
            while done < len(cases):
                ready, _, _ = select.select([pipe], [], [], LOOK)
                hangs = "" if ready else watch.over(limits)
                if not ready and not hangs:
                    continue
                chunk = pipe.read(1 << 16) if ready else b""
                if not chunk:
                    if hangs:
                        os.kill(process, signal.SIGKILL)
                    status = os.waitpid(process, 0)[1]
                    process = 0
                    detail = hangs or f"ended with {os.waitstatus_to_exitcode(status)}"
                    yield Verdict(cases[done], "hang" if hangs else "crash", detail, 0)
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    done += 1
                    yield Verdict(*json.loads(line))
                watch.start()
        finally:
            if process:
                if done < len(cases):
                    os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


class _Stopwatch:
    """The time that a process has computed, and the time that has passed, since the last verdict."""

    def __init__(self, process: int) -> None:
        self._process = process
        self.start()

    def start(self) -> None:
        """Begin anew."""
        self._passed, self._computed = time.monotonic(), self._processor_seconds()

    def over(self, limits: Limits) -> str:
        """Return which limit is passed; empty if none is."""
        if self._processor_seconds() - self._computed > limits.seconds:
            return f"over {limits.seconds:g} s of processor time"
        return f"over {limits.waiting:g} s" if time.monotonic() - self._passed > limits.waiting else ""

    def _processor_seconds(self) -> float:
        """Return the seconds that all threads of the process have computed (fields 14 and 15 of its stat, proc(5))."""
        fields = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(
    cases: Sequence[int], task: Callable[[int], tuple[Path, Callable[[], Any]]], limits: Limits, pipe: IO[str]
) -> None:
    os.setpgid(0, 0)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    faulthandler.disable()  # pytest's writes a stack to a copy of the error output; a crash is said in its verdict
    used = int(_status("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + limits.address_space,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    touched = _Touched()
    sys.addaudithook(touched.see)
    for case in cases:
        folder, call = task(case)
        before = _reset_peak()
        touched.start(folder, getattr(call, "named", ()))
        kind, detail = _outcome(call)
        found = touched.stop()
        peak = max(0, int(_status("VmHWM")) - before)
        if found:
            kind, detail = "escape", found
        elif kind in ("ok", "error") and peak > limits.peak:
            kind, detail = "memory", f"{peak / 1e9:.1f} GB"
        pipe.write(json.dumps([case, kind, detail[:500], peak]) + "\n")
        pipe.flush()


def _outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        call()
    except (EdgeformerError, click.ClickException) as error:
        text = str(error)
        text.encode("utf-8", "surrogateescape")
        return (
            ("long", f"{type(error).__name__} of {len(text)} characters: {text[:200]}")
            if len(text) > LONGEST
            else ("error", text)
        )
    except MemoryError as error:
        return "memory", _place(error)
    except BaseException as error:
        return ("memory" if "bad_alloc" in str(error) else "raw"), _place(error)
    return "ok", ""


def _place(error: BaseException) -> str:
    """Return an error's type, its place in edgeformer, and its text."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
    frames = [frame for frame in frames if "/tools/" not in frame.filename and ".venv" not in frame.filename] or frames
    where = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:200]!r}"


class _Touched:
    """Collects what the current case touches outside of its folder, by Python's audit events."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._named: tuple[str, ...] = ()
        self._found: list[str] = []
        self._compiles = sys.dont_write_bytecode
        paths = {*sys.path, *sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(ROOT)}
        # Whoever names a hub id has its library read the token, whatever the files say.
        paths.add(os.path.expanduser("~/.cache/huggingface"))
        self._roots = tuple(os.path.realpath(path) for path in paths if path)

    def start(self, folder: Path, named: Sequence[str] = ()) -> None:
        """Watch from now on. named: paths that the user names; they and what is directly in them may be touched."""
        # A module that is imported here first would be compiled to its `__pycache__`, which no input asked for.
        self._compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        self._folder, self._named, self._found = os.path.realpath(folder), tuple(map(os.path.realpath, named)), []

    def stop(self) -> str:
        """Return what was touched; empty if nothing was."""
        self._folder, sys.dont_write_bytecode = None, self._compiles
        return "; ".join(self._found)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take one audit event."""
        if self._folder is None:
            return
        if event in _FORBIDDEN:
            self._found.append(f"{event} {arguments[:1]}"[:200])
        elif event == "ctypes.dlopen" and isinstance(arguments[0], str):
            if os.path.isabs(arguments[0]) and not os.path.realpath(arguments[0]).startswith(self._roots):
                self._found.append(f"loaded {arguments[0]}")
        elif event == "open" and isinstance(arguments[0], str):
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or any(c in str(mode or "") for c in "wax+")
            real = os.path.realpath(path)
            if f"{real}{os.sep}".startswith(self._folder + os.sep) or real.startswith(_SYSTEM):
                return
            if real in self._named or os.path.dirname(real) in self._named:
                return
            if writes or not real.startswith(self._roots):
                self._found.append(f"{'wrote' if writes else 'read'} {real}")


def _status(field: str) -> int:
    """Return a number of bytes of /proc/self/status."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _reset_peak() -> int:
    """Let the kernel count the peak of resident memory anew; return the bytes that are resident now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")
