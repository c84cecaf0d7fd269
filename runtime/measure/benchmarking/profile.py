"""Measure the time per op of a model with onnxruntime's profiler.

The profiler adds some microseconds to every kernel, so the shares of small kernels are too large, and those of large
kernels too small. The time of a node is the median over the runs, so that other load on the machine matters little.
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
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.measure.benchmarking.result import Kernels
from edgeformer.runtime.measure.benchmarking.workloads import Request, Source, run
from edgeformer.runtime.sessions.session import profiled

REQUESTS = 3
"""Requests that count, after one that warms up."""

STEPS = 32
"""Decode steps of a request at most, which bounds the number of events."""

MOST_EVENTS = 1_000_000
"""Events that onnxruntime keeps of a session; it drops later ones."""

KERNEL = "_kernel_time"
"""Suffix of the names of events that hold the time of a node; the rest is the node's name."""

Node = tuple[int, str, str]
"""The index of its session, its name and its op."""

Run = dict[Node, float]
"""Microseconds of each node in one run of a graph."""


class Profile(NamedTuple):
    """Time per op of the prefill, and of a decode step; an encoder has no steps."""

    prefill: tuple[Kernels, ...]
    decode: tuple[Kernels, ...] | None = None


def measure_profile(source: Source, request: Request) -> Profile:
    """Load a bundle on the CPU, run a request a few times, and return the time per op.

    Raises RequestError for more events than onnxruntime's profiler keeps.
    """
    if not request.new_tokens:
        # The batch of an encoder is repeated for a while; every run but the first counts.
        (runs,) = _runs(source, request)
        return Profile(_kernels(runs[1:], len(runs) - 1))
    prefills = [_requests(runs) for runs in _runs(source, replace(request, new_tokens=1))]
    steps = 1 + min(request.new_tokens - 1, STEPS)
    whole = [_requests(runs) for runs in _runs(source, replace(request, new_tokens=steps))]
    steps_only = [
        each
        for alone, requests in zip(prefills, whole, strict=True)
        for before, runs in zip(alone, requests, strict=True)
        for each in runs[len(before) :]
    ]
    if Manifest.read(Path(source.bundle)).encoder_graph is not None:
        del prefills[0]  # the decoder, which is opened first and runs once to choose the first token
    prefill = [each for requests in prefills for runs in requests for each in runs]
    return Profile(_kernels(prefill, REQUESTS), _kernels(steps_only, REQUESTS * (steps - 1)))


def _runs(source: Source, request: Request) -> list[list[Run]]:
    """Return all runs of each session, in order."""
    with tempfile.TemporaryDirectory(prefix="edgeformer.profile.") as folder, profiled(Path(folder)) as sessions:
        model = source.load()
        for _ in range(1 + REQUESTS):
            run(model, request)
        return [_read(number, Path(session.end_profiling())) for number, session in enumerate(sessions)]


def _read(session: int, file: Path) -> list[Run]:
    """Read the events of a session and group them by run."""
    events = json.loads(file.read_text(encoding="utf-8"))
    if len(events) >= MOST_EVENTS:
        raise RequestError("these are more events than onnxruntime keeps; ask for fewer or shorter texts at once.")
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    runs: list[Run] = [{} for _ in starts]
    for event in events:
        if event["name"].endswith(KERNEL):
            node = session, event["name"].removesuffix(KERNEL), event["args"]["op_name"]
            runs[bisect_right(starts, event["ts"]) - 1][node] = event["dur"]
    return runs


def _requests(runs: list[Run]) -> list[list[Run]]:
    """Return the runs of each request that counts; all requests take equally many."""
    each = len(runs) // (1 + REQUESTS)
    return [runs[start : start + each] for start in range(each, len(runs), each)] if each else [[]] * REQUESTS


def _kernels(runs: Sequence[Run], times: int) -> tuple[Kernels, ...]:
    """Summarise runs by op, per request or step; times: how many requests or steps the runs are of."""
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
