"""edgeformer: its own export, run by the loop of `edgeformer run`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.turn import Generate, Turn, timed
from edgeformer.runtime import Sampling
from edgeformer.runtime import load as load_bundle
from edgeformer.runtime.generate import Row, run_rows

BUNDLE = "bundle"
"""Within the folder: an export makes its own."""


def convert(checkpoint: Path, folder: Path, precision: Any) -> None:
    """Export as with a calibration text, whatever the integers are; with the view for prompts.

    Calibrated, blocks of 128 lose about as much of a trained model as what others store by default in blocks of 32
    (quantization_loss.py). Checkpoints of random weights have no text to go by, and the speed is the same.
    """
    from edgeformer.export import export_model  # here, because what runs a bundle has no torch
    from edgeformer.quantization import CALIBRATED, QuantizationOverrides, make_quantization

    if precision == "fp32":
        export_model(checkpoint, folder / BUNDLE, precision=precision, verify=None)
        return
    quantization = make_quantization(precision, QuantizationOverrides(block=CALIBRATED[precision].block))
    export_model(
        checkpoint, folder / BUNDLE, precision=precision, quantization=quantization, prefill="int8", verify=None
    )


def load(checkpoint: Path, folder: Path, precision: str, threads: int) -> Generate:
    """Open the bundle. The cache is allocated before the clock runs, as for all that let one do so."""
    model = load_bundle(folder / BUNDLE, provider="cpu", threads=threads)

    def run(prompt: list[int], new: int) -> Turn:
        row = Row(prompt, new, frozenset(), Sampling(), None)
        steps = run_rows(model.new_decoder(1, len(prompt) + new), [row])

        def tokens() -> Iterator[int]:
            for _ in steps:
                yield row.tokens[-1]

        return timed(tokens(), new)

    return run
