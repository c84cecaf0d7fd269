"""Beam search: keep the best num_beams continuations of each source at every step.

The search is batched, over any decoder that can feed one token to every row and reorder its rows. Sources are searched
independently, so a result does not depend on the other sources of the batch. Results are those of transformers'
`generate` without sampling.

Each step takes the best continuations of all beams of a source. Those that end become hypotheses if they are among the
best num_beams; the best of the others continue:

    beams [N] × vocabulary [V]  →  N · (1 + end tokens) candidates  →  at most N hypotheses, N beams

The candidates suffice for N of them to continue even if all others end. Where scores tie, the earlier beam and then the
lower token id comes first; torch, and so transformers, leaves that order open.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.options.generation import BeamOptions
from edgeformer.runtime.generation.row import FinishReason
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor, apply_processors
from edgeformer.runtime.generation.sampling.logits_rules import Rules
from edgeformer.runtime.steps.decode_graph import Logits

Ids = NDArray[np.int64]


class BeamDecoder(Protocol):
    """The decoder that beam search needs: R = sources · beams rows, those of one source next to each other."""

    def decode_one_token(self, tokens: Ids) -> Logits:
        """Append one token to each row [R]; return the next logits [R, V], which a later call may overwrite."""

    def reorder(self, parents: Ids) -> object:
        """Replace every row r by a copy of row parents[r], which belongs to the same source."""


@dataclass(frozen=True, kw_only=True)
class BeamSearch(BeamOptions):
    """The options of a search.

    num_return_sequences: hypotheses to return for each source. Raises RequestError unless it is 1 to num_beams.
    """

    num_return_sequences: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_return_sequences <= self.num_beams:
            raise RequestError(
                f"num_return_sequences is {self.num_return_sequences}; it must be between 1 and num_beams, which is "
                f"{self.num_beams}. Raise num_beams to get more.",
                field="num_return_sequences",
            )


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A finished continuation of one source.

    token_ids: the new tokens, the end token included. score: the sum of their log-probabilities divided by
    len(token_ids) ** length_penalty. finish_reason: `eos` or `length` (max_new_tokens).
    """

    token_ids: list[int]
    score: float
    finish_reason: FinishReason


def beam_search(
    decoder: BeamDecoder,
    first_logits: Logits,
    *,
    prompts: Sequence[Sequence[int]],
    search: BeamSearch,
    max_new_tokens: int,
    eos: frozenset[int],
    pad: int,
    rules: Rules | None = None,
    processors: Sequence[LogitsProcessor] = (),
    texts: Sequence[Ids] | None = None,
) -> list[list[Hypothesis]]:
    """Continue every source; return the hypotheses of each, best first.

    Args:
        first_logits: [R, V], after the prompts; the num_beams rows of a source are equal.
        prompts: for each source, the tokens that the decoder was fed.
        eos: tokens that end a sequence; may be empty.
        pad: the token fed to rows of sources that are done.
        rules, processors: change log-probabilities (logits if greedy), as in transformers.
        texts: the tokens of each source [N], for rules that read them.

    A source has fewer than num_return_sequences hypotheses only where the rules leave no more. Raises RequestError if
    they leave none, or if logits are not finite. Source: `_beam_search` of transformers 5.23.
    """
    if max_new_tokens < 1:
        raise RequestError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.", field="max_new_tokens")
    beams = search.num_beams
    vocab_size = first_logits.shape[1]
    assert len(first_logits) == len(prompts) * beams, "every beam of every source has a row"
    rules = rules or Rules()
    rules.check(vocab_size)
    sources = [
        _Source(prompt, search, max_new_tokens, eos, rules, processors, texts[index] if texts else None)
        for index, prompt in enumerate(prompts)
    ]
    rows = np.arange(len(first_logits)).reshape(len(sources), beams)
    scratch = np.empty((beams, vocab_size), np.float32)
    logits = first_logits
    while True:
        tokens, parents = np.full_like(rows, pad), rows.copy()
        for index, source in enumerate(sources):
            if not source.done:
                source.advance(logits[rows[index, 0] : rows[index, 0] + beams], scratch)
            if not source.done:
                tokens[index] = source.tokens
                parents[index] = rows[index, source.parents]
        if all(source.done for source in sources):
            return [source.hypotheses[: search.num_return_sequences] for source in sources]
        if (parents != rows).any():
            decoder.reorder(parents.reshape(-1))
        logits = decoder.decode_one_token(tokens.reshape(-1))


class _Source:
    """The beams and the hypotheses of one source, both best first.

    tokens, parents: the last token of each beam [N], and the index of the beam that it continues.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        search: BeamSearch,
        max_new_tokens: int,
        eos: frozenset[int],
        rules: Rules,
        processors: Sequence[LogitsProcessor],
        text: Ids | None,
    ):
        self._text = text
        self.hypotheses: list[Hypothesis] = []
        self.done = False
        self._search = search
        self._prompt_length = len(prompt)
        self._max_length = len(prompt) + max_new_tokens
        self._eos = eos
        self._rules = rules
        self._processors = processors
        beams = search.num_beams
        self.parents = np.arange(beams)
        self._sequences = np.tile(np.asarray(prompt, np.int64), (beams, 1))  # [N, T], prompts included
        # All beams start equal, so the first step may continue only one of them.
        self._scores = np.full(beams, -np.inf, np.float32)
        self._scores[0] = 0

    @property
    def tokens(self) -> Ids:
        return self._sequences[:, -1]

    def advance(self, logits: Logits, scratch: NDArray[np.float32]) -> None:
        """Extend the beams by one token each, given logits [N, V]. scratch: float32 [N, V], overwritten."""
        beams, vocab_size = logits.shape
        np.copyto(scratch, logits)
        # float32 and this order of sums, as in transformers, so that ties are the same ones.
        scores = self._log_probabilities(scratch)
        scores += self._scores[:, None]
        flat = scores.reshape(-1)
        best = _largest(flat, beams * max(2, 1 + len(self._eos)))
        parents, tokens = np.divmod(best, vocab_size)
        totals = flat[best]
        first = self._sequences.shape[1] == self._prompt_length
        sequences = np.column_stack([self._sequences[parents], tokens])
        ended = np.array([token in self._eos for token in tokens.tolist()])

        self._finish(sequences[:beams], totals[:beams], ended[:beams])
        running = np.flatnonzero(~ended)[:beams]
        self._sequences, self._scores = sequences[running], totals[running]
        # After the first step all rows are still equal, so none needs to move.
        self.parents = np.arange(beams) if first else parents[running]
        self.done = self._is_done()
        if self.done and not self.hypotheses:
            raise RequestError(_NOTHING_FOLLOWS)

    def _log_probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute log-probabilities [N, V] after rules and processors, in place."""
        if self._search.num_beams == 1:
            self._apply_rules(logits)
            return _log_softmax(logits)
        scores = _log_softmax(logits)
        self._apply_rules(scores)
        return _log_softmax(scores) if self._search.renormalize_logits else scores

    def _apply_rules(self, values: NDArray[np.float32]) -> None:
        """Change values [N, V] by the rules, then by the user's processors, in place."""
        self._rules.apply(
            values,
            self._sequences,
            prompt_length=self._prompt_length,
            max_length=self._max_length,
            eos=self._eos,
            source=self._text,
        )
        if self._processors:
            for row, tokens in zip(values, self._sequences, strict=True):
                row[:] = apply_processors(self._processors, tokens.copy(), row.copy())

    def _finish(self, sequences: Ids, totals: NDArray[np.float32], ended: NDArray[np.bool_]) -> None:
        """Add the candidates that end here to the hypotheses, and keep the best num_beams."""
        length = sequences.shape[1]
        scores = totals / self._length_divisor(length)
        for sequence, score, end in zip(sequences, scores.tolist(), ended, strict=True):
            # A sequence that the rules ban (score -inf) is never a hypothesis, even where nothing else is left.
            if (end or length == self._max_length) and score > -math.inf:
                new = sequence[self._prompt_length :].tolist()
                self.hypotheses.append(Hypothesis(token_ids=new, score=score, finish_reason="eos" if end else "length"))
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del self.hypotheses[self._search.num_beams :]

    def _is_done(self) -> bool:
        search, length = self._search, self._sequences.shape[1]
        full = len(self.hypotheses) == search.num_beams
        if length == self._max_length or (full and (search.early_stopping is True or search.num_beams == 1)):
            return True
        # The best score that a beam may still reach. This is transformers' heuristic, not a bound: with a positive
        # penalty scores may grow with the length.
        if search.early_stopping == "never" and search.length_penalty > 0:
            length = self._max_length
        hope = float(self._scores[0] / self._length_divisor(length))
        return not hope > (self.hypotheses[-1].score if full else -math.inf)

    def _length_divisor(self, length: int) -> np.float32:
        return np.float32((length - self._prompt_length) ** self._search.length_penalty)


_NOTHING_FOLLOWS = (
    "no token can follow: the rules ban every one, or the model's logits are not finite. Relax suppress_tokens, "
    "bad_words_ids, no_repeat_ngram_size or min_length; if none is set, the model overflows in its precision: export "
    "it in another."
)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace logits [N, V] by log-probabilities, in place."""
    peak = logits.max(axis=1, keepdims=True)
    if not np.isfinite(peak).all():
        raise RequestError(_NOTHING_FOLLOWS)
    logits -= peak
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def _largest(values: NDArray[np.float32], count: int) -> Ids:
    """Return the indices of the `count` largest of values [n], largest first; of equal values the first index first."""
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    places = np.flatnonzero(values >= threshold)
    return places[np.argsort(-values[places], kind="stable")[:count]]
