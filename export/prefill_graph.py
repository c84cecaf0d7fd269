"""The prefill graph of a decoder: a graph over int8 weights that computes the logits of the last token only."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import ExportError
from edgeformer.export.bundle.writer import GraphWriter
from edgeformer.export.calibrate.text import CalibrationTokens
from edgeformer.export.calibrate.weights import calibrated_lowering
from edgeformer.export.capture import capture_graph
from edgeformer.export.lower import Lowered, LoweringOptions, lower_captured
from edgeformer.export.passes import last_token
from edgeformer.export.progress import Progress
from edgeformer.export.quantize import calibrated_weights
from edgeformer.manifest.parts import Arithmetic, PrefillGraph
from edgeformer.manifest.quantization import prefill_quantization
from edgeformer.models.graph_specs import GRAPH
from edgeformer.models.model_spec import ModelSpec
from edgeformer.runtime.sessions.session import open_session

PREFILL_GRAPH = "onnx/model_prefill.onnx"
TRIED = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of new tokens at which both graphs are timed."""
ROUNDS = 5
"""Runs of each graph at each number of tokens; the medians are compared."""


def write_prefill_graph(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    arithmetic: Arithmetic,
    lowering: LoweringOptions,
    folder: Path,
    writer: GraphWriter,
    text: CalibrationTokens | None,
    progress: Progress,
) -> tuple[PrefillGraph, Lowered]:
    """Write the prefill graph beside a decoder's graph, and measure from how many tokens on it is faster.

    Raises ExportError for a model whose last product cannot be reduced to the last token.
    """
    quantization = prefill_quantization(lowering.quantization, None if text is None else text.source)
    lowering = replace(lowering, quantization=quantization, calibrated=None)
    lowering = calibrated_lowering(
        lowering, model_spec, weights, text, folder / calibrated_weights.FOLDER / "prefill", progress
    )
    spec = model_spec.graphs[-1]
    graph = capture_graph(model_spec, weights, arithmetic, spec)
    cut = last_token(graph)
    if cut.missed:
        raise ExportError(f"there can be no prefill graph: {cut.missed[0]}. Leave prefill out.")
    lowered = lower_captured(graph, spec, lowering)
    writer.write_all({PREFILL_GRAPH: graph}, f"{PREFILL_GRAPH}_data")
    from_tokens = measure_crossover(folder / GRAPH, folder / PREFILL_GRAPH, model_spec.cache)
    prefill = PrefillGraph(graph=PREFILL_GRAPH, from_tokens=from_tokens, quantization=quantization)
    return prefill, replace(lowered, passes=[cut, *lowered.passes])


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
    session = open_session(path, "cpu")
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
