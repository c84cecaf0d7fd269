"""The trial of an encoder: texts alone and in padded batches, their states, and the outputs of its head."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from edgeformer.config import EncoderConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity.feeding import Side
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime.caches.encoder_outputs import pad_right

MORE_TEXTS, SHORT = 12, 12
"""Number of further texts, and tokens of each, for a model that computes one vector per text: eager's error of only a
few such vectors is a matter of chance (measured: docs/explanation/parity.md)."""
FAR = 1024
"""Tokens of the longest text that is run alone, where the context length is not shorter."""
TYPES_SALT = 1000
"""Distinguishes the random token types of a text from its random tokens."""


class EncoderTrial(Trial):
    """The trial of an encoder graph."""

    def __init__(self, setup: Setup, sessions: Sequence[Any]):
        super().__init__(setup, sessions)
        assert isinstance(setup.model_spec.config, EncoderConfig)
        self.config = setup.model_spec.config
        self.outputs = setup.model_spec.graphs[0].outputs
        heads = self.config.head_outputs
        self.gives = {output.name: output.gives for output in heads}
        self.per_token = {"last_hidden_state", *(output.name for output in heads if output.per_token)}
        # A text's numbers, one for each of its tokens, are one vector.
        self.joined = {output.name: int(output.axes == ("tokens",)) for output in heads} | {"last_hidden_state": 0}

    def run(self) -> None:
        """Run every check of the extent."""
        batches, count = self.extent.batches, max(self.extent.batches)
        lengths, rows, more = self._lengths(), [], []
        for index, length in enumerate(lengths):
            self.setup.progress("computing the float64 reference", 0.6 * index / len(lengths))
            rows += self._rows(length, [index])
        if len(self.outputs) > 1 and "words" not in self.gives.values():
            short = min(SHORT, self.config.context_length)
            more = self._rows(short, list(range(len(rows), len(rows) + MORE_TEXTS)))
        self._worst = {output: worst_of(row.eager_errors(output) for row in rows + more) for output in self.outputs}
        self.setup.progress("running the graph", 0.6)
        alone = [self._run([row])[0] for row in rows + more]
        self._judge("text", "texts of several lengths, each alone", alone, rows + more)
        causal = any(attention.causal for attention in self.config.attentions)
        sides: tuple[Side, ...] = ("right", "left") if causal else ("right",)
        for size, side in product((size for size in batches if size > 1), sides):
            self._judge_batch(rows[:size] + more, alone[:size] + alone[len(rows) :], side)
        once = self._run(rows[:count])
        for name, what, again in (
            ("repeat", "a second run of the same batch", self._run(rows[:count])),
            ("padding", "other tokens behind the texts", self._run(rows[:count], padding=1)),
        ):
            for output in self.outputs:
                values = [np.concatenate([row[output].ravel() for row in run]) for run in (once, again)]
                self.judge.identical(f"{name}: {output}", what, *values)

    def _lengths(self) -> list[int]:
        """Return the length of every text in tokens; the first ones form the batches."""
        extent, longest = self.extent, self.config.context_length
        lengths = [max(1, min(extent.main, longest) // (1 + index)) for index in range(max(extent.batches))]
        lengths += [length for length in extent.lengths if length < longest]
        return lengths + ([min(longest, FAR)] if extent.far else [])

    def _judge_batch(self, rows: list[Row], alone: list[dict[str, Array]], side: Side) -> None:
        """Judge texts as one padded batch, which must agree with what the graph computes for each alone."""
        batch, name = self._run(rows, side=side), f"batch of {len(rows)}"
        name = name if side == "right" else f"{name}, padded on the left"
        sizes = dict.fromkeys(str(len(row.tokens)) for row in rows)
        self._judge(name, f"{len(rows)} texts of {', '.join(sizes)} tokens, {side}-padded", batch, rows)
        for output in self.outputs:
            pairs = [(row[output], solo[output]) for row, solo in zip(batch, alone, strict=True)]
            eager = np.concatenate([row.eager.vectors[output] for row in rows], self.joined[output])
            expected = np.concatenate([row.expected.vectors[output] for row in rows], self.joined[output])
            self.judge.agreement(f"{name} against solo: {output}", pairs, eager, expected)

    def _judge(self, run: str, what: str, found: list[dict[str, Array]], rows: list[Row]) -> None:
        for output in self.outputs:
            pieces = (row.piece(each[output], output=output) for each, row in zip(found, rows, strict=True))
            name, worst = f"{run}, {output}", self._worst[output]
            if self.gives.get(output) == "words":
                self.judge.eager_worst = worst
                self.judge.logits(name, what, pieces)
            else:
                few, size = len(found[0][output]) == 1, self.config.hidden_size
                self.judge.vectors(name, what, pieces, few=few, worst=worst, norm_size=size)

    def _rows(self, length: int, salts: list[int]) -> list[Row]:
        """Run both references on random texts of one length, one for each salt."""
        tokens = np.stack([random_tokens(length, self.config.vocab_size, salt) for salt in salts])
        types = [random_tokens(length, max(self.config.token_types, 1), TYPES_SALT + salt) for salt in salts]
        ids = torch.from_numpy(tokens)
        inputs = [ids, torch.ones_like(ids)]
        if self.config.token_types > 1:
            inputs.append(torch.from_numpy(np.stack(types)))

        def outputs(reference: Reference) -> list[Outputs]:
            values = dict(zip(self.outputs, reference.forward(*inputs), strict=True))
            return [
                Outputs({name: np.atleast_2d(to_numpy(value[row])) for name, value in values.items()})
                for row in range(len(salts))
            ]

        pairs = enumerate(zip(*self.references.compute(outputs, tokens, *types), strict=True))
        return [Row(tokens[row], *pair, types=types[row]) for row, pair in pairs]

    def _run(self, rows: list[Row], padding: int = 0, side: Side = "right") -> list[dict[str, Array]]:
        """Run texts as one batch, padded on a side with a token; return each row's outputs at its own positions."""
        ids, mask = pad_right([row.tokens.tolist() for row in rows], padding)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self.config.token_types > 1:
            feeds["token_type_ids"] = pad_right([row.types.tolist() for row in rows], 0)[0]
        starts = [0 if side == "right" else ids.shape[1] - len(row.tokens) for row in rows]
        for array in feeds.values():
            array[:] = [np.roll(values, start) for values, start in zip(array, starts, strict=True)]
        arrays = dict(zip(self.outputs, self.graphs[0].session.run(list(self.outputs), feeds), strict=True))
        return [
            {
                name: np.atleast_2d(array[index][start:][: len(row.tokens)] if name in self.per_token else array[index])
                for name, array in arrays.items()
            }
            for index, (row, start) in enumerate(zip(rows, starts, strict=True))
        ]
