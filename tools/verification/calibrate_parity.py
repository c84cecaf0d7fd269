"""Measure how much eager PyTorch differs from itself; export/parity/tolerances.py derives its limits from the result.

    python tools/verification/calibrate_parity.py

Random models run in float64 once, and in float32 and float16 in several ways that compute the same sums in another
order: with one thread, inside a batch, and token by token over a cache. For each figure the tool prints its ratio to
the plain run (median and largest): a limit below that ratio would reject PyTorch itself.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.parity.figures import Errors
from edgeformer.export.parity.tolerances import UNIT_ROUNDOFF
from edgeformer.export.reference.reference import CastWeights, Reference
from edgeformer.manifest.parts import Precision
from edgeformer.models.model_spec import model_spec_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from verification.random_models import random_model

Run = Callable[[Reference, Tensor], Tensor]


def plain(reference: Reference, ids: Tensor) -> Tensor:
    """Run the whole text at once. ids [1, S] → logits [S, V]."""
    return reference.run(ids)[0][0]


def one_thread(reference: Reference, ids: Tensor) -> Tensor:
    """Run the whole text with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return plain(reference, ids)
    finally:
        torch.set_num_threads(threads)


def in_a_batch(reference: Reference, ids: Tensor) -> Tensor:
    """Run the text in a batch with two others."""
    return reference.run(torch.cat((ids, ids.flip(1), ids.roll(1, 1))))[0][0]


def single_steps(reference: Reference, ids: Tensor) -> Tensor:
    """Run the text token by token over a cache."""
    logits, caches = reference.run(ids[:, :1])
    steps = [logits]
    for place in range(1, ids.shape[1]):
        # A run with a past returns no caches, so the prefix is computed again.
        _, caches = reference.run(ids[:, :place])
        steps.append(reference.run(ids[:, place : place + 1], caches.__getitem__)[0])
    return torch.cat(steps, 1)[0]


WAYS: dict[str, Run] = {"one thread": one_thread, "in a batch": in_a_batch, "single steps": single_steps}


@click.command(help=__doc__)
@click.option("--models", default=30, show_default=True)
def main(models: int) -> None:
    """Draw models, run them in every way, compare."""
    draw = random.Random(0)
    growth: dict[tuple[Precision, str, str], list[float]] = defaultdict(list)
    for index in track(range(models), console=Console(stderr=True)):
        config = random_model(draw)
        precision: Precision = ("fp32", "fp16")[index % 2]  # type: ignore[assignment]
        weights = CastWeights(RandomWeights(config, index), TORCH_PRECISIONS[precision])
        ids = torch.from_numpy(np.random.default_rng(index).integers(0, config.vocab_size, (1, 24)))
        exact = plain(Reference(model_spec_of(config), weights), ids).numpy()
        narrow = Reference(model_spec_of(config), weights, TORCH_PRECISIONS[precision])
        base = plain(narrow, ids).numpy()
        if not np.isfinite(base).all():
            continue  # the model overflows in this precision
        for way, run in WAYS.items():
            errors = Errors(UNIT_ROUNDOFF[precision])
            errors.add(run(narrow, ids).numpy(), base, exact)
            for figure, (value, eager) in errors.figures().items():
                if eager is None or eager > 0:
                    growth[precision, way, figure].append(value if eager is None else value / eager)
    table = Table("precision", "way", "figure", "median", "largest", title="ratio of each figure to the plain run's")
    for (precision, way, figure), values in sorted(growth.items()):
        table.add_row(precision, way, figure, f"{np.median(values):.2f}", f"{max(values):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
