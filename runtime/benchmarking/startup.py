"""Loading a bundle in fresh processes: how long it takes, and how much memory answering takes.

The parent sends the child its task as an argument, and reads one line of JSON from its standard output.
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
from edgeformer.runtime.benchmarking.result import Memory
from edgeformer.runtime.benchmarking.workloads import Request, run
from edgeformer.runtime.loading import load
from edgeformer.runtime.session import ProviderChoice, onnxruntime

STATUS = Path("/proc/self/status")
SAMPLE_SECONDS = 0.005

# The clock starts before the first import that is ours.
PROGRAM = (
    "import time; start = time.perf_counter(); from edgeformer.runtime.benchmarking.startup import child; child(start)"
)


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Seconds of one fresh process."""

    imports: float
    load: float


def measure_loading(bundle: Path, provider: ProviderChoice, threads: int) -> Loading:
    """Start Python, import the runtime, load the bundle, and end. Raises BundleError if that fails."""
    answer = _ask(bundle, provider, threads, None)
    return Loading(imports=answer["imports"], load=answer["load"])


def measure_memory(bundle: Path, provider: ProviderChoice, threads: int, request: Request) -> Memory | None:
    """Load the bundle in a fresh process and answer a request; None where the system does not tell."""
    memory = _ask(bundle, provider, threads, request)["memory"]
    return None if memory is None else Memory(**memory)


def _ask(bundle: Path, provider: ProviderChoice, threads: int, request: Request | None) -> dict[str, Any]:
    task = {
        "bundle": str(bundle),
        "provider": provider,
        "threads": threads,
        "request": None if request is None else asdict(request),
    }
    # -P: a folder `edgeformer` where the user happens to be is not the package.
    line = [sys.executable, "-P", "-c", PROGRAM, json.dumps(task)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BundleError(
            f"a fresh process could not run {bundle}: it ended with {done.returncode} ({last}). Without memory enough, "
            "ask for a smaller batch or a shorter prompt."
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def child(start: float) -> None:
    """What the fresh process does; start: when it began."""
    task = json.loads(sys.argv[1])
    onnxruntime()
    imported = time.perf_counter()

    def open_model() -> Any:
        return load(task["bundle"], task["provider"], task["threads"])

    if task["request"] is None:
        open_model()
        answer: dict[str, Any] = {"imports": imported - start, "load": time.perf_counter() - imported}
    else:
        memory = _watched(lambda: run(open_model(), Request(**task["request"])))
        answer = {"memory": None if memory is None else asdict(memory)}
    sys.stdout.write(json.dumps(answer) + "\n")


def _watched(work: Callable[[], object]) -> Memory | None:
    """Do something and return what memory it took; None, with nothing done, on systems that do not tell."""
    if not STATUS.is_file():
        return _watched_by_rusage(work)
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
        # Not getrusage, which takes over the peak of the process that started this one.
        peak_bytes=_resident()["peak"],
        private_bytes=peaks["private"],
        file_bytes=peaks["file"],
    )


def _resident() -> dict[str, int]:
    """Bytes of this process: private and file-backed now, and the peak of their sum."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    size = {name: int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile", "VmHWM")}  # of kB
    return {"private": size["RssAnon"] + size["RssShmem"], "file": size["RssFile"], "peak": size["VmHWM"]}


def _watched_by_rusage(work: Callable[[], object]) -> Memory | None:
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
