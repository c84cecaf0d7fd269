"""One verification of an encoder-decoder: each graph by itself, and both together on padded sources.

sources ─→ float64 and eager: states, keys and values for the decoder, logits of the targets ─────────────┐
    └────→ encoder graph: the same, alone and padded ─→ decoder graph: prefill, steps, chunks, batches ───┴→ checks
                                                    └→ merged decoder: prefill, steps, a batch ───────────┘
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.config import Seq2SeqConfig
from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.parity import feeding as runs
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.judge import Caches, Judge, Piece, compare_greedy
from edgeformer.export.parity.report import Greedy
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.decoder import Extent, judge_empty_slots
from edgeformer.export.parity.trials.merged_decoder import MergedRows
from edgeformer.export.progress import Progress
from edgeformer.export.reference.reference import Reference, references
from edgeformer.model_spec import ModelSpec
from edgeformer.quantization import WeightFormat
from edgeformer.runtime.encoder_outputs import EncoderOutputs, pad_right
from edgeformer.runtime.session import CACHE_DTYPES

Array = NDArray[Any]
PROMPT = 2
"""Tokens that the decoder is given before it writes by itself."""


@dataclass
class _Told:
    """A source and a target, and what float64 or eager PyTorch makes of them."""

    states: Array  # [source, E]
    source: Caches  # [H, source, D]
    logits: Array  # [target, V]
    caches: Caches  # [K, target, D]


@dataclass
class _Known:
    """One row: its source (token ids [source], or a spectrogram [mel_bins, frames]), its target, and their truth."""

    source: Array
    target: NDArray[np.int64]
    expected: _Told
    eager: _Told

    def piece(self, graph: Array, first: int = 0) -> Piece:
        """Logits of a graph from a position on, with what they should be held to."""
        part = slice(first, first + len(graph))
        return Piece(graph, self.eager.logits[part], self.expected.logits[part], first)


@dataclass
class Seq2SeqTrial:
    """One verification on its way; `run` lets `judge` collect checks, and fills greedy."""

    encoder: Any
    graph: Graph
    merged: Any | None
    config: Seq2SeqConfig
    model_spec: ModelSpec
    weights: Mapping[str, Tensor]
    extent: Extent
    progress: Progress
    activations: Mapping[str, WeightFormat] | None = None
    orders: int = 1
    greedy: Greedy = field(default_factory=lambda: Greedy(steps=0))

    def __post_init__(self) -> None:
        self.arithmetic = self.graph.manifest.arithmetic
        dtype = TORCH_PRECISIONS[self.arithmetic]
        self.judge = Judge(self.arithmetic)
        self.exact, self.rounding_only = references(
            self.model_spec, self.weights, dtype, self.activations, orders=self.orders
        )

    def run(self) -> None:
        """Everything, in the order of the module's picture."""
        extent, vocab_size = self.extent, self.config.vocab_size
        rows = max(extent.batches)
        sources = [self._source(index) for index in range(rows)]
        targets = [random_tokens(extent.main, vocab_size, salt=100 + index) for index in range(rows)]
        self.progress("generating with the graph", 0.0)
        first = self._reading(sources[:1])
        written, chosen = runs.greedy(first, random_tokens(PROMPT, vocab_size, salt=99), extent.greedy)
        known = []
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self.progress("computing the float64 reference", 0.1 + 0.4 * index / rows)
            known.append(self._know(source, target))
        own = self._know(sources[0], written)
        self.judge.eager_worst = worst_of((each.eager.logits, each.expected.logits) for each in (*known, own))
        allowed = self.judge.logits(
            "decode", f"{extent.greedy} free-running greedy steps", [own.piece(chosen, PROMPT - 1)]
        )
        expected = own.expected.logits[PROMPT - 1 :][: len(chosen)]
        self.greedy = compare_greedy(chosen, expected, allowed)
        self.progress("running the encoder", 0.5)
        self._judge_encoder(known)
        self.progress("running the decoder", 0.6)
        self._judge_decoder(first, known[0])
        self.progress("running batches", 0.8)
        for count in extent.batches:
            self._judge_batch(known[:count])
        self._judge_identity(known)
        if self.merged is not None:
            self.progress("running the merged decoder", 0.9)
            self._judge_merged(self.merged, known)

    def _source(self, index: int) -> Array:
        """Random tokens, each source shorter than the one before, or noise of the one length that there is."""
        encoder = self.config.encoder
        if encoder.audio is not None:
            shape = encoder.audio.mel_bins, 2 * encoder.context_length
            return np.random.default_rng(index).normal(size=shape).astype(CACHE_DTYPES[self.arithmetic])
        length = max(1, min(self.extent.main, encoder.context_length) // (1 + index))
        return random_tokens(length, encoder.vocab_size, salt=index)

    def _reading(self, sources: list[Array], padding: int = 0) -> Graph:
        """The decoder graph, reading what the encoder graph makes of sources padded with a token."""
        if self.config.encoder.audio is not None:
            inputs = {"input_features": np.stack(sources)}
            mask = np.ones((len(sources), self.config.encoder.context_length), np.int64)
        else:
            ids, mask = pad_right([source.tolist() for source in sources], padding)
            inputs = {"input_ids": ids, "attention_mask": mask}
        graph = self.graph
        return replace(graph, sources=EncoderOutputs(self.encoder, graph.manifest, inputs, mask, graph.provider))

    def _know(self, source: Array, target: NDArray[np.int64]) -> _Known:
        told = []
        for reference in (self.exact, self.rounding_only):
            states, cross, logits, presents = reference.in_summation_orders(
                partial(self._tell, reference, source, target)
            )
            told.append(_Told(states[0].numpy(), _arrays(cross), logits[0].numpy(), _arrays(presents)))
        return _Known(source, target, *told)

    def _tell(self, reference: Reference, source: Array, target: NDArray[np.int64]) -> tuple[Any, ...]:
        """What encoder and decoder of a reference make of one source and target: states, keys and values, logits."""
        row, ids = torch.from_numpy(source)[None], torch.from_numpy(target)[None]
        caches = [reference.empty_cache(1)] * self.model_spec.cache.num_layers
        with reference.loaded():
            if row.is_floating_point():
                states, cross = reference.module.encode(row.to(reference.dtype))
            else:
                states, cross = reference.module.encode(row, torch.ones_like(row))
            mask = torch.ones(states.shape[:2], dtype=torch.int64)
            logits, presents = reference.module.decode(ids, torch.ones_like(ids), mask, caches, cross)
        return states, cross, logits, presents

    def _judge_encoder(self, known: list[_Known]) -> None:
        """States and keys and values of the encoder graph, each source alone and all of them padded."""
        alone = [self._read([each]) for each in known]
        what = "states of sources of several lengths, each alone"
        pieces = (
            Piece(read.states[0], each.eager.states, each.expected.states)
            for read, each in zip(alone, known, strict=True)
        )
        self.judge.vectors("encoder", what, pieces)
        main = known[0]
        keys_values = [(key[0], value[0]) for key, value in alone[0].read()]
        self.judge.caches("encoder", keys_values, main.eager.source, main.expected.source)
        if len(known) > 1:
            batch = self._read(known)
            rows = [batch.states[row][batch.mask[row] > 0] for row in range(len(known))]
            pairs = [(row, read.states[0]) for row, read in zip(rows, alone, strict=True)]
            name = f"encoder, batch of {len(known)} against solo"
            self.judge.agreement(name, pairs, main.eager.states, main.expected.states)

    def _read(self, known: list[_Known]) -> EncoderOutputs:
        sources = self._reading([each.source for each in known]).sources
        assert sources is not None
        return sources

    def _judge_decoder(self, graph: Graph, main: _Known) -> None:
        """One target: whole, token by token, in chunks; and its cache."""
        whole, decoder = runs.prefill(graph, main.target)
        self.judge.logits("prefill", "a target in one run", [main.piece(whole)])
        read = [(key[0], value[0]) for key, value in decoder.cache.read(len(main.target))]
        self.judge.layers = self.judge.caches("prefill", read, main.eager.caches, main.expected.caches)
        single = main.target[: self.extent.single]
        for run, what, feed, part in (
            ("steps", f"{len(single)} single steps from an empty cache", runs.single_steps, single),
            ("chunks", "a target in chunks of 1, 2, 3, 5, 8… tokens", runs.chunks, main.target),
        ):
            logits, _ = feed(graph, part)
            self.judge.logits(run, what, [main.piece(logits)])
            pairs = [(logits, whole[: len(part)])]
            self.judge.agreement(f"{run} against prefill", pairs, main.eager.logits, main.expected.logits)

    def _judge_batch(self, known: list[_Known]) -> None:
        """Padded sources and targets of unequal lengths, then single steps of all."""
        steps, rows = self.extent.steps, len(known)
        lengths = [max(1, (len(each.target) - steps) // (1 + index)) for index, each in enumerate(known)]
        graph = self._reading([each.source for each in known])
        targets = [each.target for each in known]
        prompts = f"targets of {', '.join(map(str, lengths))} tokens, then {steps} steps"
        solo: list[Array] = []
        for side in graph.sides[:rows]:
            logits = runs.ragged_batch(graph, targets, lengths, steps, side)
            name = f"batch of {rows}" if side == "right" else f"batch of {rows}, padded on the left"
            what = f"{rows} padded sources, {prompts}"
            self.judge.logits(name, what, [each.piece(row) for row, each in zip(logits, known, strict=True)])
            if rows > 1:
                solo = solo or [
                    runs.prefill(self._reading([each.source]), each.target[: len(row)])[0]
                    for row, each in zip(logits, known, strict=True)
                ]
                first = known[0]
                pairs = zip(logits, solo, strict=True)
                self.judge.agreement(f"{name} against solo", pairs, first.eager.logits, first.expected.logits)

    def _judge_merged(self, session: Any, known: list[_Known]) -> None:
        """The decoder as other clients feed it: a target in one run, token by token, and all padded sources at once."""
        main = known[0]
        single = main.target[: self.extent.single]
        for run, what, target, first in (
            ("merged prefill", "a target in one run of the merged decoder", main.target, len(main.target)),
            ("merged steps", f"{len(single)} tokens, all but {PROMPT} in single steps", single, PROMPT),
        ):
            rows = MergedRows(session, self._read([main]))
            self.judge.logits(run, what, [main.piece(rows.feed(target[None], first)[0])])
            known_caches = (_first(each.caches, len(target)) for each in (main.eager, main.expected))
            self.judge.caches(run, rows.read("decoder."), *known_caches)
            self.judge.caches(f"{run}, source", rows.read("encoder."), main.eager.source, main.expected.source)
        targets = np.stack([each.target[: PROMPT + self.extent.steps] for each in known])
        logits = MergedRows(session, self._read(known)).feed(targets, PROMPT)
        what = f"{len(known)} padded sources, targets of {PROMPT} tokens, then {self.extent.steps} steps"
        pieces = [each.piece(row) for row, each in zip(logits, known, strict=True)]
        self.judge.logits(f"merged batch of {len(known)}", what, pieces)

    def _judge_identity(self, known: list[_Known]) -> None:
        """What must not differ by a bit: another run, other content where no token is, other padding."""
        sources, tokens = [each.source for each in known], known[0].target[:33]
        graph = self._reading(sources[:1])
        once = runs.prefill(graph, tokens)[0]
        self.judge.identical(
            "repeat", "the same source and target again", once, runs.prefill(self._reading(sources[:1]), tokens)[0]
        )
        judge_empty_slots(self.judge, graph, tokens)
        if self.config.encoder.audio is None and len(known) > 1:
            batches = [self._prefill_all(self._reading(sources, padding), tokens) for padding in (0, 1)]
            self.judge.identical("padding", "other tokens behind the sources", *batches)

    def _prefill_all(self, graph: Graph, tokens: NDArray[np.int64]) -> Array:
        """One target for every source, in one run: logits [rows, n, V]."""
        assert graph.sources is not None
        rows = len(graph.sources.mask)
        return graph.decoder(rows, len(tokens)).prefill_batch(np.tile(tokens, (rows, 1)), [len(tokens)] * rows)


def _first(caches: Caches, tokens: int) -> Caches:
    return [(key[:, :tokens], value[:, :tokens]) for key, value in caches]


def _arrays(caches: list[tuple[Tensor, Tensor]]) -> Caches:
    return [(key[0].numpy(), value[0].numpy()) for key, value in caches]
