"""edgeformer: its own export, run by the loop that `edgeformer run` uses."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.generation import Generate, Generation, timed
from benchmarks.peers.registry import CACHE_PRECISION, DEFAULT_CACHE
from edgeformer.runtime import load as load_bundle
from edgeformer.runtime.generation.generate import start_rows
from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.scheduling import Beginnings

BUNDLE = "bundle"
"""Name of the bundle inside the folder; an export creates its own folder."""


def convert(checkpoint: Path, folder: Path, precision: Any) -> None:
    """Export with the block sizes that a calibrated export has, and a float16 cache beside quantized weights.

    A model whose layers keep keys and values of several shapes, or other states, has a cache of float32. llama.cpp's is
    of float16 by default, too, and OpenVINO GenAI's of 8 bits.

    On a trained model, calibrated blocks of 128 lose about as much as the blocks of 32 that other runtimes store by
    default (quantization_loss.py). Checkpoints of random weights have no calibration text; speed does not depend on the
    integers.
    """
    from edgeformer.export import export_model  # here, because what runs a bundle has no torch
    from edgeformer.families import read_model_config
    from edgeformer.manifest.quantization import CALIBRATED, QuantizationOverrides, make_quantization

    if precision == "fp32":
        export_model(checkpoint, folder / BUNDLE, precision=precision, verify=None)
        return
    _, config = read_model_config(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
    cache: Any = DEFAULT_CACHE if config.output_stack.keys_are_its_own else None
    quantization = make_quantization(precision, QuantizationOverrides(block=CALIBRATED[precision].block))
    export_model(
        checkpoint,
        folder / BUNDLE,
        precision=precision,
        quantization=quantization,
        cache_precision=cache,
        verify=None,
    )


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the bundle. The cache is allocated before the clock starts, as for every runtime that allows it."""
    asked: Any = os.environ.get(CACHE_PRECISION, DEFAULT_CACHE)
    cache = None if asked == DEFAULT_CACHE or precision == "fp32" else asked
    model = load_bundle(folder / BUNDLE, provider="cpu", threads=threads, cache_precision=cache)

    def run(prompt: list[int], new: int) -> Generation:
        row = Row(prompt, new, frozenset(), Sampling(), None)
        [stream] = start_rows(Beginnings(model.new_decoder(1, len(prompt) + new)), [row])[1]
        tokens: Iterator[int] = (event.token_id for event in stream.events())
        return timed(tokens, new)

    return run
