"""Where a model's time goes, op by op, by onnxruntime's own profiler.

The profiler adds some microseconds to every kernel: small ones have less of the time than it seems, large ones more.
Times are medians over the runs, node by node, so that what else the machine does meanwhile counts little.
"""

import json
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from edgeformer.errors import RequestError
from edgeformer.manifest import Manifest
from edgeformer.runtime.benchmarking.result import Kernels
from edgeformer.runtime.benchmarking.workloads import Request, run
from edgeformer.runtime.loading import load
from edgeformer.runtime.session import profiled

REQUESTS = 3
"""So many count, after one that does not."""

STEPS = 32
"""No more of a request: events are many."""

MOST_EVENTS = 1_000_000
"""That onnxruntime keeps of a session; it drops what comes then."""

KERNEL = "_kernel_time"
"""How events are called that tell what a node took, after its name."""

Node = tuple[int, str, str]
"""Which session it is of, its name and its op."""

Run = dict[Node, float]
"""Microseconds of each node in one run of a graph."""


class Profile(NamedTuple):
    """Where the time goes in reading, and in a step, which an encoder has not."""

    prefill: tuple[Kernels, ...]
    decode: tuple[Kernels, ...] | None = None


def measure_profile(bundle: Path, threads: int, request: Request) -> Profile:
    """Load a bundle on the CPU and answer a request a few times.

    Raises RequestError for more than onnxruntime's profiler keeps.
    """
    if not request.new_tokens:
        # Its batch is repeated for a while, and so every run counts but the first.
        (runs,) = _runs(bundle, threads, request)
        return Profile(_kernels(runs[1:], len(runs) - 1))
    reading = [_requests(runs) for runs in _runs(bundle, threads, replace(request, new_tokens=1))]
    steps = 1 + min(request.new_tokens - 1, STEPS)
    whole = [_requests(runs) for runs in _runs(bundle, threads, replace(request, new_tokens=steps))]
    behind = [
        each
        for alone, requests in zip(reading, whole, strict=True)
        for before, runs in zip(alone, requests, strict=True)
        for each in runs[len(before) :]
    ]
    if Manifest.read(bundle).encoder_graph is not None:
        del reading[0]  # the decoder's, which is opened first and runs once to choose the first token
    read = [each for requests in reading for runs in requests for each in runs]
    return Profile(_kernels(read, REQUESTS), _kernels(behind, REQUESTS * (steps - 1)))


def _runs(bundle: Path, threads: int, request: Request) -> list[list[Run]]:
    """All runs of each session, in order."""
    with tempfile.TemporaryDirectory(prefix="edgeformer.profile.") as folder, profiled(Path(folder)) as sessions:
        model = load(bundle, "cpu", threads)
        for _ in range(1 + REQUESTS):
            run(model, request)
        return [_read(number, Path(session.end_profiling())) for number, session in enumerate(sessions)]


def _read(session: int, file: Path) -> list[Run]:
    """What a session noted, run by run."""
    events = json.loads(file.read_text(encoding="utf-8"))
    if len(events) >= MOST_EVENTS:
        raise RequestError("that is more than onnxruntime's profiler keeps; ask for fewer or shorter texts at once.")
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    runs: list[Run] = [{} for _ in starts]
    for event in events:
        if event["name"].endswith(KERNEL):
            node = session, event["name"].removesuffix(KERNEL), event["args"]["op_name"]
            runs[bisect_right(starts, event["ts"]) - 1][node] = event["dur"]
    return runs


def _requests(runs: list[Run]) -> list[list[Run]]:
    """The runs of each request that counts; all of them take as many."""
    each = len(runs) // (1 + REQUESTS)
    return [runs[start : start + each] for start in range(each, len(runs), each)] if each else [[]] * REQUESTS


def _kernels(runs: Sequence[Run], times: int) -> tuple[Kernels, ...]:
    """What was done so many times, by op."""
    taken: dict[Node, list[float]] = defaultdict(list)
    for node, microseconds in (item for each in runs for item in each.items()):
        taken[node].append(microseconds)
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for (_, _, op), of_node in taken.items():
        counts[op] += len(of_node)
        seconds[op] += len(of_node) * median(of_node) / 1e6
    whole = sum(seconds.values())
    found = [
        Kernels(op=op, count=counts[op] // times, fraction=seconds[op] / whole, seconds=seconds[op] / counts[op])
        for op in counts
    ]
    return tuple(sorted(found, key=lambda kernels: -kernels.fraction))
