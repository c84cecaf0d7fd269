"""Measure loading time and memory of a bundle in fresh processes.

The parent passes the task as an argument, and the child prints its result as one line of JSON.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeformer.errors import BundleError
from edgeformer.runtime.measure.benchmarking.result import Memory
from edgeformer.runtime.measure.benchmarking.workloads import Request, Source, run
from edgeformer.runtime.sessions.session import onnxruntime

STATUS = Path("/proc/self/status")
"""Where Linux reports the memory of this process."""

SAMPLE_SECONDS = 0.005
"""Seconds between two samples of the memory."""

# The clock starts before the first import of edgeformer.
PROGRAM = (
    "import time; start = time.perf_counter(); "
    "from edgeformer.runtime.measure.benchmarking.startup import child; child(start)"
)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Seconds that one fresh process takes to import the runtime with onnxruntime, and then to load the bundle."""

    imports: float
    load: float


def measure_loading(source: Source) -> Loading:
    """Import the runtime and load the bundle in a fresh process. Raises BundleError if that fails."""
    answer = _ask(source, None)
    return Loading(imports=answer["imports"], load=answer["load"])


def measure_memory(source: Source, request: Request) -> Memory | None:
    """Load the bundle in a fresh process, run a request, and return the memory; None where the system does not tell."""
    memory = _ask(source, request)["memory"]
    return None if memory is None else Memory(**memory)


def _ask(source: Source, request: Request | None) -> dict[str, Any]:
    task = {"source": source, "request": None if request is None else asdict(request)}
    # -P: a folder `edgeformer` in the working directory must not be imported.
    line = [sys.executable, "-P", "-c", PROGRAM, json.dumps(task)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BundleError(
            f"a fresh process could not run {source.bundle}: it exited with {done.returncode} ({last}). If memory does "
            "not suffice, ask for a smaller batch or a shorter prompt."
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def child(start: float) -> None:
    """Run the task in the fresh process; start: time.perf_counter() of its beginning."""
    task = json.loads(sys.argv[1])
    onnxruntime()
    imported = time.perf_counter()

    def open_model() -> Any:
        return Source(*task["source"]).load()

    if task["request"] is None:
        open_model()
        answer: dict[str, Any] = {"imports": imported - start, "load": time.perf_counter() - imported}
    else:
        memory = _measured(lambda: run(open_model(), Request(**task["request"])))
        answer = {"memory": None if memory is None else asdict(memory)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _measured(work: Callable[[], object]) -> Memory | None:
    """Run `work` and return the memory that it took; None, without running it, where the system does not tell."""
    if not STATUS.is_file():
        return _measured_by_rusage(work)
    before = _resident()
    peaks = dict(before)
    finished = threading.Event()

    def sample() -> None:
        while not finished.wait(SAMPLE_SECONDS):
            for name, value in _resident().items():
                peaks[name] = max(peaks[name], value)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        finished.set()
        sampler.join()
    return Memory(
        before_load_bytes=before["private"] + before["file"],
        # Not getrusage, whose peak includes that of the process that started this one.
        peak_bytes=_resident()["peak"],
        private_bytes=peaks["private"],
        file_bytes=peaks["file"],
    )


def _resident() -> dict[str, int]:
    """Return bytes of this process: private and file-backed memory now, and the peak of their sum."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    size = {name: int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile", "VmHWM")}  # kB
    return {"private": size["RssAnon"] + size["RssShmem"], "file": size["RssFile"], "peak": size["VmHWM"]}


def _measured_by_rusage(work: Callable[[], object]) -> Memory | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    before = peak()
    work()
    return Memory(before_load_bytes=before, peak_bytes=peak(), private_bytes=None, file_bytes=None)
