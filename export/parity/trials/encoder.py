"""One verification of an encoder: texts alone and in padded batches, their states and what its head makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.config import EncoderConfig, MaskedLMHead
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Judge, Piece
from edgeformer.export.parity.report import Greedy
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.decoder import Extent
from edgeformer.export.progress import Progress
from edgeformer.export.reference.reference import references
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.encoder_outputs import pad_right

Array = NDArray[Any]

MORE_TEXTS = 12
SHORT = 12
"""So many texts more, of so many tokens, for a model that makes one vector of each."""


@dataclass
class _Known:
    """A text with what float64 and eager PyTorch make of it, by the names of the graph's outputs: [n, V] each."""

    tokens: NDArray[np.int64]
    types: NDArray[np.int64]
    expected: dict[str, Array]
    eager: dict[str, Array]

    def piece(self, output: str, graph: Array) -> Piece:
        """What a graph gave for this text alone, with what it should be held to."""
        return Piece(graph, self.eager[output], self.expected[output])


@dataclass
class EncoderTrial:
    """One verification on its way; `run` lets `judge` collect checks."""

    graph: Graph
    config: EncoderConfig
    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    extent: Extent
    progress: Progress
    activations: Mapping[str, WeightFormat] | None = None
    orders: int = 1
    greedy: Greedy = field(default_factory=lambda: Greedy(steps=0))

    def __post_init__(self) -> None:
        arithmetic = self.graph.manifest.arithmetic
        dtype = TORCH_PRECISIONS[arithmetic]
        self.judge = Judge(arithmetic)
        self.exact, self.rounding_only = references(
            self.model_spec, self.weights, dtype, self.activations, orders=self.orders
        )
        self.outputs = self.model_spec.graphs[0].outputs

    def run(self) -> None:
        """Texts alone, then in batches, then what must not differ by a bit."""
        extent, longest = self.extent, self.config.context_length
        rows = max(extent.batches)
        lengths = [max(1, min(extent.main, longest) // (1 + index)) for index in range(rows)]
        lengths += [length for length in extent.lengths if length < longest]
        if extent.far:
            lengths.append(min(longest, 1024))
        known, more = [], []
        for index, length in enumerate(lengths):
            self.progress("computing the float64 reference", 0.6 * index / len(lengths))
            known += self._know(length, [index])
        if len(self.outputs) > 1 and not isinstance(self.config.head, MaskedLMHead):
            # One vector a text, perhaps of one number: of only a few of them, chance picks how well eager does.
            more = self._know(min(SHORT, longest), list(range(len(known), len(known) + MORE_TEXTS)))
        self._worst = {
            output: worst_of((each.eager[output], each.expected[output]) for each in known + more)
            for output in self.outputs
        }
        self.progress("running the graph", 0.6)
        alone = [self._run([each])[0] for each in known + more]
        self._judge("text", "texts of several lengths, each alone", alone, known + more)
        for count in extent.batches:
            if count > 1:
                texts = known[:count] + more
                batch = self._run(texts)
                name = f"batch of {len(texts)}"
                sizes = dict.fromkeys(str(len(each.tokens)) for each in texts)
                what = f"{len(texts)} texts of {', '.join(sizes)} tokens, padded"
                self._judge(name, what, batch, texts)
                for output in self.outputs:
                    solo = alone[:count] + alone[len(known) :]
                    pairs = [(row[output], by_itself[output]) for row, by_itself in zip(batch, solo, strict=True)]
                    eager = np.concatenate([each.eager[output] for each in texts])
                    expected = np.concatenate([each.expected[output] for each in texts])
                    self.judge.agreement(f"{name} against solo: {output}", pairs, eager, expected)
        once = self._run(known[:rows])
        for name, what, again in (
            ("repeat", "a second run of the same batch", self._run(known[:rows])),
            ("padding", "other tokens behind the texts", self._run(known[:rows], padding=1)),
        ):
            for output in self.outputs:
                values = [np.concatenate([row[output].ravel() for row in runs]) for runs in (once, again)]
                self.judge.identical(f"{name}: {output}", what, *values)

    def _judge(self, run: str, what: str, found: list[dict[str, Array]], known: list[_Known]) -> None:
        for output in self.outputs:
            pieces = (each.piece(output, row[output]) for row, each in zip(found, known, strict=True))
            name = f"{run}, {output}"
            if output == "logits" and isinstance(self.config.head, MaskedLMHead):
                self.judge.eager_worst = self._worst[output]
                self.judge.logits(name, what, pieces)
            else:
                few, worst = len(found[0][output]) == 1, self._worst[output]
                self.judge.vectors(name, what, pieces, few=few, worst=worst)

    def _know(self, length: int, salts: list[int]) -> list[_Known]:
        """Random texts of one length, a salt each, computed together."""
        tokens = np.stack([random_tokens(length, self.config.vocab_size, salt) for salt in salts])
        types = np.stack([random_tokens(length, max(self.config.token_types, 1), 1000 + salt) for salt in salts])
        ids, kinds = torch.from_numpy(tokens), torch.from_numpy(types)
        given = [ids, torch.ones_like(ids), *([kinds] if self.config.token_types > 1 else [])]
        expected, eager = (
            dict(zip(self.outputs, (value.numpy() for value in reference.forward(*given)), strict=True))
            for reference in (self.exact, self.rounding_only)
        )
        return [
            _Known(
                tokens[row], types[row],
                *({name: np.atleast_2d(value[row]) for name, value in made.items()} for made in (expected, eager)),
            )
            for row in range(len(salts))
        ]  # fmt: skip

    def _run(self, texts: list[_Known], padding: int = 0) -> list[dict[str, Array]]:
        """Run texts as one batch, padded on the right with a token: the outputs of each, at its own positions."""
        ids, mask = pad_right([each.tokens.tolist() for each in texts], padding)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self.config.token_types > 1:
            feeds["token_type_ids"] = pad_right([each.types.tolist() for each in texts], 0)[0]
        arrays = dict(zip(self.outputs, self.graph.session.run(list(self.outputs), feeds), strict=True))
        return [
            {
                name: np.atleast_2d(array[row][: len(each.tokens)] if array.ndim == 3 else array[row])
                for name, array in arrays.items()
            }
            for row, each in enumerate(texts)
        ]
