"""The view for prompts of a decoder: a graph over int8 weights that gives logits of the last token alone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from edgeformer.blueprint import Blueprint
from edgeformer.contract import CacheGeometry, past_names
from edgeformer.errors import ExportError
from edgeformer.export.build import capture_graph
from edgeformer.export.bundle import GraphWriter, Progress
from edgeformer.export.lower import Lowered, Target, lower_captured
from edgeformer.export.passes import last_token
from edgeformer.export.quantize import calibrated
from edgeformer.export.quantize.calibrate import calibrated_target
from edgeformer.export.quantize.calibration_text import CalibrationTokens
from edgeformer.graphs import GRAPH
from edgeformer.manifest import Arithmetic, PrefillView
from edgeformer.quantization import prefill_recipe
from edgeformer.runtime.session import open_session

PREFILL_GRAPH = "onnx/model_prefill.onnx"
TRIED = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 5


def write_prefill_view(
    blueprint: Blueprint,
    weights: Mapping[str, Tensor],
    arithmetic: Arithmetic,
    target: Target,
    folder: Path,
    writer: GraphWriter,
    text: CalibrationTokens | None,
    progress: Progress,
) -> tuple[PrefillView, Lowered]:
    """Write the view for prompts beside a decoder's graph, and measure from how many tokens it is faster."""
    quantization = prefill_recipe(target.quantization, None if text is None else text.source)
    target = replace(target, quantization=quantization, calibrated=None)
    target = calibrated_target(target, blueprint, weights, text, folder / calibrated.FOLDER / "prefill", progress)
    spec = blueprint.graphs[-1]
    graph = capture_graph(blueprint, weights, arithmetic, spec)
    cut = last_token(graph)
    if cut.missed:
        raise ExportError(f"there can be no view for prompts: {cut.missed[0]}. Leave prefill out.")
    lowered = lower_captured(graph, spec, target)
    writer.write_all({PREFILL_GRAPH: graph}, f"{PREFILL_GRAPH}_data")
    from_tokens = measure_crossover(folder / GRAPH, folder / PREFILL_GRAPH, blueprint.cache)
    view = PrefillView(graph=PREFILL_GRAPH, from_tokens=from_tokens, quantization=quantization)
    return view, replace(lowered, passes=[cut, *lowered.passes])


def measure_crossover(graph: Path, view: Path, geometry: CacheGeometry) -> int:
    """The fewest tokens of `TRIED` from which on the view is faster; the next power of two where it never is."""
    runs = [_run(path, geometry) for path in (graph, view)]
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
    """A function that feeds so many tokens to an empty cache."""
    session = open_session(path, "cpu")
    types = {value.name: value.type for value in session.get_inputs()}
    dtype = np.int8 if types[past_names(geometry)[0]] == "tensor(int8)" else np.float32
    empty = {name: np.zeros((1, geometry.num_kv_heads, 0, geometry.head_dim), dtype) for name in past_names(geometry)}

    def run(tokens: int) -> Any:
        ids = np.zeros((1, tokens), np.int64)
        return session.run(["logits"], {"input_ids": ids, "attention_mask": np.ones_like(ids), **empty})

    run(1)
    return run
