"""The trial of a tower of pictures: pictures alone and in batches, their states, and what is pooled of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeformer.config import PictureTower
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.tolerances import longest_sum
from edgeformer.export.parity.trials.pictures.tower_samples import TowerSamples
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial
from edgeformer.export.reference.reference import Reference

MORE_PICTURES = 12
"""Number of pictures beside those of the largest batch: eager's error of a few pooled vectors is a matter of chance."""
NO_TOKENS = np.empty(0, np.int64)
"""The tokens of a picture, which has none."""


class VisionTrial(Trial):
    """The trial of a graph that reads pixel values."""

    def __init__(self, setup: Setup, sessions: Sequence[Any]):
        super().__init__(setup, sessions)
        [spec] = setup.model_spec.graphs
        assert isinstance(spec.stack, PictureTower)
        self.samples, self.outputs = TowerSamples(spec.stack), spec.outputs

    def run(self) -> None:
        """Run every check of the extent."""
        count = max(self.extent.batches) + MORE_PICTURES
        rows = []
        for index in range(count):
            self.setup.progress("computing the float64 reference", 0.6 * index / count)
            rows.append(self._row(index))
        self._worst = {output: worst_of(row.eager_errors(output) for row in rows) for output in self.outputs}
        self.setup.progress("running the graph", 0.6)
        alone = [self._run([row])[0] for row in rows]
        self._judge("picture", "pictures of noise, each alone", alone, rows)
        for size in (size for size in self.extent.batches if size > 1):
            self._judge_batch(rows[:size], alone[:size])
        once, again = self._run(rows[:2]), self._run(rows[:2])
        for output in self.outputs:
            values = [np.concatenate([each[output].ravel() for each in run]) for run in (once, again)]
            self.judge.identical(f"repeat: {output}", "a second run of the same batch", *values)

    def _judge_batch(self, rows: list[Row], alone: list[dict[str, Array]]) -> None:
        """Judge that pictures as one batch agree with what the graph computes for each alone."""
        batch, name = self._run(rows), f"batch of {len(rows)} against solo"
        for output in self.outputs:
            pairs = [(each[output], solo[output]) for each, solo in zip(batch, alone, strict=True)]
            eager = np.concatenate([row.eager.vectors[output] for row in rows])
            expected = np.concatenate([row.expected.vectors[output] for row in rows])
            self.judge.agreement(f"{name}: {output}", pairs, eager, expected)

    def _judge(self, run: str, what: str, found: list[dict[str, Array]], rows: list[Row]) -> None:
        for output in self.outputs:
            pieces = (row.piece(each[output], output=output) for each, row in zip(found, rows, strict=True))
            few = len(found[0][output]) == 1
            self.judge.vectors(
                f"{run}, {output}", what, pieces, few=few, worst=self._worst[output],
                longest_sum=longest_sum(self.float64.module),
            )  # fmt: skip

    def _row(self, salt: int) -> Row:
        """Run both references on a picture of noise, which is as large as normalized pixels are."""
        pixels = self.samples.picture(salt)

        def outputs(reference: Reference) -> list[Outputs]:
            values = reference.forward(*self.samples.tensors(pixels))
            vectors = {
                name: np.atleast_2d(to_numpy(value[0])) for name, value in zip(self.outputs, values, strict=True)
            }
            return [Outputs(vectors)]

        (expected,), (eager,) = self.references.compute(outputs, pixels)
        return Row(NO_TOKENS, expected, eager, source=pixels)

    def _run(self, rows: list[Row]) -> list[dict[str, Array]]:
        """Run pictures as one batch; return each row's outputs, without states of padding."""
        feeds = self.samples.feeds([row.source for row in rows])
        arrays = dict(zip(self.outputs, self.graphs[0].session.run(list(self.outputs), feeds), strict=True))
        return [
            {name: np.atleast_2d(array[index])[: len(row.expected.vectors[name])] for name, array in arrays.items()}
            for index, row in enumerate(rows)
        ]
