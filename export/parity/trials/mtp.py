"""The trial of drafts by multi-token prediction: the runtime drafts behind a text, and what it computes is judged.

    decode graph ──→ states ──┐
    tokens ───────────────────┴→ graph of the layer ──→ logits of the drafted tokens

A text is forced upon the runtime, so that its drafts are right and wrong at known places. The logits of every drafted
token must be those of PyTorch, which reads the text anew for each draft and goes on with the same tokens: so states of
other tokens, and what is kept of tokens that were taken back, show. The tokens of a text do not depend on drafts.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeformer.config import DecoderConfig
from edgeformer.export.graph.tensors import to_numpy
from edgeformer.export.parity.figures import worst_of
from edgeformer.export.parity.float_products import open_unrounded
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.samples import random_tokens
from edgeformer.export.parity.trials.protocol import Array, Outputs, Row, Setup, Trial, row_of
from edgeformer.export.reference.reference import Reference
from edgeformer.manifest.quantization import WeightFormat
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.generation import row as generation
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.sampling.sampling import Sampling
from edgeformer.runtime.generation.speculation import DraftLength, MultiTokenPrediction, keep_states
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.sessions.kernels import BODIES, KernelChoice
from edgeformer.runtime.sessions.session import open_session
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.new_decoder import new_decoder

TOKENS = 48
"""Tokens of a text."""
PROMPTS = (5, 20)
"""Tokens of its prompt: the layer reads it in one run of a few tokens, and like a prompt (`multi_token.SHORT`)."""
LENGTHS = (3, 1, 4, 0, 2)
"""Tokens of drafts, in turn."""
RIGHT = 0.6
"""Fraction of the drafted tokens that are those of the text."""


@dataclass(frozen=True)
class _Draft:
    """A draft: how many tokens the text had, those that were drafted, and the logits [V] behind which each was."""

    length: int
    tokens: list[int] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)


class _GivenDrafts(MultiTokenPrediction):
    """The runtime's drafter, but it drafts tokens that are given by their places, and remembers its logits."""

    def __init__(self, given: NDArray[np.int64], *parts: Any):
        super().__init__(*parts)
        self._given = given
        self.drafts: list[_Draft] = []
        self.error: Exception | None = None

    def draft(self, count: int) -> list[int]:
        """Return the given tokens behind the text."""
        self.drafts.append(_Draft(len(self._text)))
        try:
            return super().draft(count)
        except Exception as error:  # of onnxruntime; a request would go on without drafts
            self.error = error
            raise

    def choose(self, logits: Logits) -> int:
        """Return the given token behind those that were drafted."""
        draft = self.drafts[-1]
        token = int(self._given[draft.length + len(draft.tokens)])
        draft.tokens.append(token)
        draft.logits.append(logits.copy())
        return token


class _GivenLengths(DraftLength):
    """Lengths of drafts that do not depend on what they cost."""

    def __init__(self) -> None:
        super().__init__(max(LENGTHS))
        self._asked = 0

    def choose(self, pending: int = 0) -> int:
        """Return the next of the lengths."""
        self._asked += 1
        return LENGTHS[self._asked % len(LENGTHS)]


class MTPTrial(Trial):
    """The trial of a decode graph that returns states, and of the graph of the layer that reads them."""

    def __init__(self, setup: Setup, model: Any, layer: Any):
        """model, layer: sessions of both graphs."""
        super().__init__(setup, [model])
        config = cast(DecoderConfig, setup.manifest.model)
        assert config.mtp is not None
        self._layer, self._geometry, self._hidden_size = layer, config.mtp.cache_geometry, config.hidden_size

    def run(self) -> None:
        """Run every check."""
        for salt, prompt in enumerate(PROMPTS):
            self._judge_text(salt, prompt)

    def _judge_text(self, salt: int, prompt: int) -> None:
        manifest = self.setup.manifest
        count, vocabulary = min(TOKENS, manifest.context_length), manifest.vocab_size
        text = random_tokens(count, vocabulary, salt=40 + salt)
        prompt = min(prompt, max(1, count // 2))
        right = np.random.default_rng(salt).random(count) < RIGHT
        given = np.where(right, text, (text + 1) % vocabulary)
        states, drafter = self._generate(text, given, prompt)
        drafts = [draft for draft in drafter.drafts if draft.tokens]
        row, run = self._row(text, drafts), f"prompt of {prompt}"
        self.judge.eager_worst = worst_of([row.eager_errors()])
        self.judge.vectors(run, "states that the decode graph returns", [row.piece(states, output="states")])
        found = np.stack([each for draft in drafts for each in draft.logits])
        self.judge.logits(f"{run}, drafts", f"{len(found)} tokens in {len(drafts)} drafts", [row.piece(found)])
        known = drafter.known
        caches = [tuple(tensor[0] for tensor in layer) for layer in drafter.decoder.cache.read(known)]
        eager, expected = (
            [tuple(part[:, :known] for part in layer) for layer in outputs.caches]
            for outputs in (row.eager, row.expected)
        )
        self.judge.caches(f"{run}, drafts", self._geometry, caches, eager, expected)

    def _generate(self, text: Array, given: Array, prompt: int) -> tuple[Array, _GivenDrafts]:
        """Let the runtime write a text with given drafts; return the states of all tokens but the last, [n - 1, E]."""
        graph, manifest = self.graphs[0], self.setup.manifest

        def force(ids: Array, logits: Array) -> Array:
            logits[:] = -np.inf
            logits[text[len(ids)]] = 0
            return logits

        row = generation.Row(
            text[:prompt].tolist(), len(text) - prompt, frozenset(), Sampling(), None, processors=[force]
        )
        decoder = graph.decoder(1, len(text))
        states = keep_states(decoder, self._hidden_size)
        states.fill(np.nan)
        made: list[_GivenDrafts] = []

        def new_drafter() -> _GivenDrafts:
            capacity = decoder.cache.capacity
            layer = new_decoder(self._layer, manifest, 1, capacity, self.setup.provider, cache=self._geometry)
            if isinstance(layer.cache, StaticCache):
                layer.cache.fill(graph.fillings[0])
            made.append(_GivenDrafts(given, layer, states, 0, manifest.vocab_size))
            return made[-1]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a drafter that fails, which is an error here
            run_rows(decoder, [row], drafts=RowDrafts(row, new_drafter, _GivenLengths()))
        assert row.tokens == text[prompt:].tolist(), "the text is forced upon the row"
        [drafter] = made
        if drafter.error is not None:
            raise drafter.error
        return states[: len(text) - 1], drafter

    def _row(self, text: Array, drafts: Sequence[_Draft]) -> Row:
        """Run both references on a text and on what is drafted behind its beginnings."""
        ids = torch.from_numpy(text)[None]

        def run(reference: Reference) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
            module, dtype = reference.module, reference.dtype
            empty = self._geometry.by_layer(
                [torch.zeros(tensor.shape(1, 0), dtype=dtype) for tensor in self._geometry.tensors()]
            )
            with reference.loaded():
                _, states, _ = module.forward_with_states(ids, torch.ones_like(ids), reference.empty_caches(1))
                read = ids[:, 1:]
                logits, predicted, [kept] = module.predict(read, torch.ones_like(read), states[:, :-1], empty)
                found = [each for draft in drafts for each in _drafted(module, draft, logits, predicted, kept)]
            return torch.cat(found), states[0, :-1], kept

        def outputs(reference: Reference) -> Outputs:
            logits, states, kept = reference.in_summation_orders(run)
            vectors = {"logits": to_numpy(logits), "states": to_numpy(states)}
            return Outputs(vectors, row_of([kept]))

        return Row(text, *self.references.compute(outputs, text))


def _drafted(
    module: Any, draft: _Draft, logits: Tensor, predicted: Tensor, kept: tuple[Tensor, ...]
) -> Iterator[Tensor]:
    """Yield the logits [1, V] behind which each token of a draft is chosen, by what the layer makes of the whole text.

    logits [1, n, V], predicted [1, n, E], kept: of the layer, whose place i reads token i + 1.
    """
    read = draft.length - 1
    yield logits[:, read - 1]
    state, past = predicted[:, read - 1 : read], tuple(part[:, :, :read] for part in kept)
    for index, token in enumerate(draft.tokens[:-1], 1):
        mask = torch.ones(1, read + index, dtype=torch.int64)
        found, state, [past] = module.predict(torch.tensor([[token]]), mask, state, [past])
        yield found[:, 0]


def mtp_trials(
    setup: Setup, formats: Mapping[str, WeightFormat], kernels: KernelChoice
) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    """Yield a name and a function that tries drafts: without rounding of activations, then as they are used.

    formats: of quantized weights, by parameter. kernels: that clients run the graphs with.
    """
    setup = replace(setup, mode="quick", references=None)
    files = [setup.folder / setup.manifest.graphs[name].file for name in ("model", "mtp")]

    def judge(chosen: KernelChoice | None) -> list[Check]:
        if chosen is None:
            sessions = open_unrounded(files, setup.provider, formats.values())
        else:
            sessions = [open_session(file, setup.provider, kernels=chosen) for file in files]
        trial = MTPTrial(replace(setup, activations=None if chosen is None else formats), *sessions)
        trial.run()
        return trial.judge.checks

    yield "mtp, ", partial(judge, None)
    if formats:
        yield "mtp, int8 activations, ", partial(judge, BODIES)
    if kernels.library is not None:
        yield "mtp, kernels, ", partial(judge, kernels)
