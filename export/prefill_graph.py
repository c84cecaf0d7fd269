"""The prefill graph of a decoder: a graph over int8 weights that computes the logits of the last token only."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import ExportError
from edgeformer.export.calibrate.weights import with_calibrated_weights
from edgeformer.export.graph_folder import GraphFolder
from edgeformer.export.passes import last_token
from edgeformer.export.quantize import calibrated_weights
from edgeformer.manifest.graph_forms import FORMS, GRAPH, PrefillGraph
from edgeformer.manifest.quantization import prefill_quantization
from edgeformer.runtime.sessions.session import open_session

PREFILL_GRAPH = FORMS["prefill"].file
TRIED = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of new tokens at which both graphs are timed."""
ROUNDS = 5
"""Runs of each graph at each number of tokens; the medians are compared."""


def write_prefill_graph(out: GraphFolder) -> PrefillGraph:
    """Write the prefill graph beside a decoder's graph, and measure from how many tokens on it is faster.

    Raises ExportError for a model whose last product cannot be reduced to the last token.
    """
    spec = out.job.model_spec.graphs[-1]
    graph = out.job.captured(spec)
    cut = last_token(graph)
    if cut.missed:
        raise ExportError(f"there can be no prefill graph: {cut.missed[0]}. Leave prefill out.")
    quantization = prefill_quantization(out.job.plan.quantization, None if out.text is None else out.text.source)
    job = replace(out.job, plan=replace(out.job.plan, quantization=quantization), calibrated=None)
    job = with_calibrated_weights(job, out.text, out.folder / calibrated_weights.FOLDER / "prefill", out.progress)
    lowered = job.lower(graph, spec)
    out.writer.write(graph, PREFILL_GRAPH)
    out.lowered[PREFILL_GRAPH] = replace(lowered, passes=[cut, *lowered.passes])
    from_tokens = measure_crossover(out.folder / GRAPH, out.folder / PREFILL_GRAPH, job.model_spec.cache)
    return PrefillGraph(file=PREFILL_GRAPH, from_tokens=from_tokens, quantization=quantization)


def measure_crossover(graph: Path, prefill: Path, geometry: CacheGeometry) -> int:
    """Return the fewest tokens of `TRIED` from which on the prefill graph is faster; where it never is, the next power
    of two.
    """
    runs = [_run(path, geometry) for path in (graph, prefill)]
    crossover = 2 * TRIED[-1]
    for tokens in reversed(TRIED):
        seconds: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for run, times in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                run(tokens)
                times.append(time.perf_counter() - start)
        if median(seconds[1]) >= median(seconds[0]):
            break
        crossover = tokens
    return crossover


def _run(path: Path, geometry: CacheGeometry) -> Callable[[int], Any]:
    """Return a function that feeds a number of tokens to an empty cache."""
    session = open_session(path)
    types = {value.name: value.type for value in session.get_inputs()}
    empty = {
        tensor.past: np.zeros(tensor.shape(1, 0), np.int8 if types[tensor.past] == "tensor(int8)" else np.float32)
        for tensor in geometry.tensors()
    }

    def run(tokens: int) -> Any:
        ids = np.zeros((1, tokens), np.int64)
        return session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty})

    run(1)
    return run
