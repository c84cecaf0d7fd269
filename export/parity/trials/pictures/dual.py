"""The trial of a dual encoder: each half alone and in batches, their similarity, and the graph that joins them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from edgeformer.config import DualEncoderConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.importers.pictures.dual_texts import read_similarity
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.tolerances import longest_sum
from edgeformer.export.parity.trials.pictures.tower_samples import TowerSamples
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial
from edgeformer.export.reference.reference import Reference
from edgeformer.models.graph_specs import joined_graph
from edgeformer.runtime.tasks.vision.similarity import similarities
from edgeformer.runtime.tasks.vision.text_rows import padded

MORE = 9
"""Texts and pictures beside those of the largest batch: eager's error of a few vectors is a matter of chance."""
COMPARED = 3
"""Texts and pictures that are compared with each other; one more of these, so that rows and columns differ."""
NUMBERS = 1e-6
"""Largest error of the manifest's scale and bias, which are written with all of their digits."""
NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Half:
    """One half: what it reads, its session, its outputs, and how a reference computes these."""

    reads: str
    session: Any
    outputs: tuple[str, ...]
    method: str

    @property
    def vector(self) -> str:
        """The output that is the vector."""
        return self.outputs[-1]


class DualTrial(Trial):
    """The trial of the graph of texts, of the graph of pictures, and of the one that joins them, if there is one."""

    def __init__(self, setup: Setup, sessions: Sequence[Any]):
        super().__init__(setup, sessions)
        self.config = cast(DualEncoderConfig, setup.model_spec.config)
        text, picture = setup.model_spec.graphs
        self.texts = Half("text", sessions[0], text.outputs, "encode_texts")
        self.pictures = Half("picture", sessions[1], picture.outputs, "vision")
        self.samples = TowerSamples(self.config.vision)
        self.joined = sessions[2] if "joined" in setup.manifest.graphs else None

    def run(self) -> None:
        """Run every check of the extent."""
        count, progress = max(self.extent.batches) + MORE, self.setup.progress
        progress("computing the float64 reference", 0.0)
        texts = [self._row(self.texts, self._text(index)) for index in range(count)]
        progress("computing the float64 reference", 0.3)
        pictures = [self._row(self.pictures, self.samples.picture(index)) for index in range(count)]
        progress("running the graphs", 0.6)
        for half, rows in ((self.texts, texts), (self.pictures, pictures)):
            self._judge_half(half, rows)
        self._judge_numbers()
        self._judge_similarity()

    def _text(self, salt: int) -> Array:
        """Return token ids [1, S] with the end token, if there is one, in two places, of which the first counts."""
        length = self.config.context_length
        if not self.config.padded:
            length = max(1, min(self.extent.main, length) - 2 * salt)
        tokens = random_tokens(length, self.config.vocab_size, salt)
        if (end := self.config.text.end_token) is not None:
            tokens[[length // 2, length - 1]] = end
        return tokens[None]

    def _row(self, half: Half, source: Array) -> Row:
        """Run both references of a half on one text or picture."""
        inputs = [torch.from_numpy(source)] if half is self.texts else self.samples.tensors(source)

        def run(reference: Reference) -> Any:
            with reference.loaded():
                return getattr(reference.module, half.method)(*inputs)

        def outputs(reference: Reference) -> list[Outputs]:
            values = reference.in_summation_orders(run)
            pairs = zip(half.outputs, values, strict=True)
            return [Outputs({name: np.atleast_2d(to_numpy(value[0])) for name, value in pairs})]

        (expected,), (eager,) = self.references.compute(outputs, source)
        return Row(NOTHING, expected, eager, source=source)

    def _judge_half(self, half: Half, rows: list[Row]) -> None:
        """Judge every row alone, and in batches, where texts are padded with other tokens."""
        worst = {name: worst_of(row.eager_errors(name) for row in rows) for name in half.outputs}
        alone = [self._run(half, [row])[0] for row in rows]
        for name in half.outputs:
            pieces = (row.piece(each[name], output=name) for row, each in zip(rows, alone, strict=True))
            few = name == half.vector
            what = f"{half.reads}s, each alone"
            self.judge.vectors(
                f"{half.reads}, {name}", what, pieces, few=few, worst=worst[name],
                longest_sum=longest_sum(self.float64.module),
            )  # fmt: skip
        for size in (size for size in self.extent.batches if size > 1):
            batch = self._run(half, rows[:size])
            for name in half.outputs:
                pairs = [(each[name], solo[name]) for each, solo in zip(batch, alone, strict=False)]
                both = [
                    np.concatenate([side.vectors[name] for side in sides])
                    for sides in ([row.eager for row in rows], [row.expected for row in rows])
                ]
                self.judge.agreement(f"batch of {size} {half.reads}s against solo: {name}", pairs, *both)
        once, again = self._run(half, rows[:2]), self._run(half, rows[:2])
        for name in half.outputs:
            values = [np.concatenate([each[name].ravel() for each in run]) for run in (once, again)]
            self.judge.identical(f"repeat, {half.reads}: {name}", "a second run of the same batch", *values)

    def _run(self, half: Half, rows: list[Row]) -> list[dict[str, Array]]:
        """Run texts or pictures as one batch; return each row's outputs, states of its own tokens alone."""
        if half is self.texts:
            texts = [row.source[0].tolist() for row in rows]
            feeds = {"input_ids": padded(texts, self.config, 0, "right")}
        else:
            feeds = self.samples.feeds([row.source for row in rows])
        arrays = half.session.run(list(half.outputs), feeds)
        found = []
        for index, row in enumerate(rows):
            values = {name: np.atleast_2d(each[index]) for name, each in zip(half.outputs, arrays, strict=True)}
            found.append({name: each[: len(row.expected.vectors[name])] for name, each in values.items()})
        return found

    def _judge_numbers(self) -> None:
        """Judge the numbers of the manifest, with which the runtime compares vectors."""
        written, stored = self.setup.manifest.similarity, read_similarity(self.setup.weights, self.config)
        assert written is not None
        pairs = ((written.scale, stored.scale), (written.bias, stored.bias))
        worst = max(abs(mine - other) / max(abs(other), 1.0) for mine, other in pairs)
        what = "scale and bias of the manifest against the parameters"
        reason = "probabilities are computed with them"
        check = Check(name="similarity: numbers", what=what, value=worst, limit=NUMBERS, eager=None, reason=reason)
        self.judge.checks.append(check)

    def _judge_similarity(self) -> None:
        """Judge what the runtime makes of both vectors, and all outputs of the graph that joins the halves."""
        text, names = self._text(0), joined_graph(self.config).outputs
        ids = np.concatenate([text, *(np.roll(text, place + 1, 1) for place in range(COMPARED - 1))])
        pictures = [self.samples.picture(index) for index in range(COMPARED + 1)]
        feeds = {"input_ids": ids} | self.samples.feeds(pictures)

        def outputs(reference: Reference) -> list[Outputs]:
            values: Sequence[Tensor] = reference.forward(torch.from_numpy(ids), *self.samples.tensors(*pictures))
            return [Outputs({name: to_numpy(value) for name, value in zip(names, values, strict=True)})]

        [(expected, eager)] = zip(*self.references.compute(outputs, ids, *pictures), strict=True)
        row = Row(NOTHING, expected, eager)
        found = [("similarity", names[0], self._compared(ids, pictures))] if self._full_precision else []
        if self.joined is not None:
            arrays = self.joined.run(list(names), feeds)
            found += [("joined graph", name, array) for name, array in zip(names, arrays, strict=True)]
        for what, name, array in found:
            described = f"{len(pictures)} pictures against {len(ids)} texts"
            self.judge.vectors(f"{what}, {name}", described, [row.piece(array, output=name)], few=True)

    @property
    def _full_precision(self) -> bool:
        """Whether the graphs store the numbers of the similarity in float32, too, so that they are the manifest's."""
        return self.setup.manifest.plan.arithmetic == "fp32" and self.setup.manifest.plan.precision != "bf16"

    def _compared(self, ids: Array, pictures: Sequence[Array]) -> Array:
        """Return what the runtime computes: the similarities [P, T]."""
        assert self.setup.manifest.similarity is not None
        [seen] = self.pictures.session.run([self.pictures.vector], self.samples.feeds(pictures))
        [texts] = self.texts.session.run([self.texts.vector], {"input_ids": ids})
        return similarities(seen, texts, self.setup.manifest.similarity)
