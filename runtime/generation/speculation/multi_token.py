"""Multi-token prediction: the model's own layer drafts tokens, from the states that the model computed of the text.

    text               t₀  t₁  t₂  t₃  t₄           t₄ was chosen last, and has not been run
    states of the model    h₀  h₁  h₂  h₃
    the layer reads        h₀t₁  h₁t₂  h₂t₃  h₃t₄  ──→  d₅, and a state g₃ that stands in for h₄
    and goes on with                               g₃d₅ ──→  d₆ …

What the layer keeps of drafted tokens is taken back before it reads more of the text, so that it follows what the model
chose. Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2); to feed its state back, vllm/v1/spec_decode/eagle.py.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import HIDDEN_STATES, PREDICTED_STATES
from edgeformer.runtime.steps.decode_graph import Logits, TokenStates
from edgeformer.runtime.steps.runner import Snapshot, StepRunner

SHORT = 16
"""Tokens that are run in one piece over a binding that is kept; more are run like a prompt."""


def keep_states(decoder: StepRunner, hidden_size: int) -> NDArray[np.float32]:
    """Let the runs of a decoder of one row keep the state of each token; return where, float32 [capacity, E].

    A row of it is written when its token is run; those of tokens that were taken back mean nothing.
    """
    states = np.empty((decoder.cache.capacity, hidden_size), np.float32)
    decoder.graph.token_states = (TokenStates(HIDDEN_STATES, [states], hidden_size),)
    return states


class MultiTokenPrediction:
    """The layer of a model that drafts tokens of one row.

    decoder: of the layer's graph, empty, of one row. states: where runs of the model keep those of the row, as
    `keep_states` returns it. begun: tokens of the text whose states nobody has, since they were kept from earlier
    requests; the layer does without them. vocab_size: tokens of the model.

    known: tokens that the layer has read, and that were not drafted.
    """

    def __init__(self, decoder: StepRunner, states: NDArray[np.float32], begun: int, vocab_size: int):
        self.decoder = decoder
        self.known = 0
        self._begun = begun
        self._states = states[begun:]
        self._predicted = np.empty_like(self._states)
        self._vocab_size = vocab_size
        self._text: list[int] = []
        self._before_drafts: Snapshot | None = None
        decoder.graph.token_states = (
            TokenStates(HIDDEN_STATES, [self._states], self._states.shape[1], is_input=True),
            TokenStates(PREDICTED_STATES, [self._predicted], self._states.shape[1]),
        )

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; a prompt is read at once, so that it takes no time of the first draft."""
        self._text.extend(tokens)
        if len(tokens) > 1:
            self._follow(self._text[:-1])

    def draft(self, count: int) -> list[int]:
        """Return the most likely tokens, each after those before it."""
        read = len(self._text) - 1 - self._begun
        count = min(count, self.decoder.cache.capacity - read + 1)
        if count < 1 or read < 1:
            return []
        logits = self._follow(self._text)
        assert logits is not None, "the last token of a text is new"
        drafted = [self.choose(logits)]
        while len(drafted) < count and drafted[-1] < self._vocab_size:
            place = int(self.decoder.lengths[0])
            self._states[place] = self._predicted[place - 1]
            drafted.append(self.choose(self.decoder.decode_one_token(drafted[-1:])[0]))
        return drafted if drafted[-1] < self._vocab_size else drafted[:-1]

    def choose(self, logits: Logits) -> int:
        """Return the token to draft by logits [V]."""
        return int(logits.argmax())

    def _follow(self, text: Sequence[int]) -> Logits | None:
        """Take back what was drafted, and read what is new in the text; return the logits [V] behind it, if any."""
        decoder, tokens = self.decoder, text[self._begun + 1 :]
        if self._before_drafts is None:
            decoder.cut(0, self.known)
        else:
            decoder.restore(self._before_drafts)
        missing = tokens[self.known :]
        self.known = max(len(tokens), self.known)
        logits = self._read(missing) if missing else None
        if not decoder.can_cut(decoder.cache.capacity):  # a dynamic cache, or a window that loses tokens
            self._before_drafts = decoder.snapshot()
        return logits

    def _read(self, tokens: Sequence[int]) -> Logits:
        """Append tokens to what the layer keeps; return the logits [V] behind the last one."""
        if len(tokens) == 1:
            return self.decoder.decode_one_token(tokens)[0]
        return self.decoder.decode_last(0, tokens) if len(tokens) <= SHORT else self.decoder.prefill(0, tokens)
