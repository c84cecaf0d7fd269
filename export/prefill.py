"""From how many tokens the view for prompts is faster than the other graph of a decoder: measured, here and now."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgeformer.contract import CacheGeometry, past_names
from edgeformer.runtime.session import open_session

TRIED = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 5


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
