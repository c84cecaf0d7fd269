"""DRY ("don't repeat yourself"): penalise tokens that would go on repeating what the text already has.

    text so far   … the old bear walked home . The old bear walked        a token after "The old bear walked"
                        ╰── match of 3 tokens ──╯      ╰── suffix ──╯      that would make the match longer loses
                                                                           multiplier · base ^ (match − allowed length)

Source: `llama_sampler_dry` of llama.cpp, whose option names these are. It is a logits processor, so that it works in
beam search, too.
"""

import math

import numpy as np
from numpy.typing import NDArray

from edgeformer.options.generation import DryOptions
from edgeformer.runtime.text.tokenizer import Tokenizer

LARGEST_PENALTY = 1e38
"""The largest penalty, which float32 has room for; it bans a token."""

MAX_EXPONENT = 88.0
"""Natural logarithm of the largest penalty, about that of the largest float32: a larger one could not be subtracted."""


class Dry(DryOptions):
    """The options of DRY."""

    def processor(self, tokenizer: Tokenizer | None) -> "DryPenalty":
        """Return the logits processor; without a tokenizer, tokens have no text, and so nothing breaks a sequence."""
        breakers = [text.encode() for text in self.dry_sequence_breakers if text]
        vocabulary = tokenizer.vocabulary if tokenizer and breakers else ()
        ids = [id for id, token in enumerate(vocabulary) if any(text in token for text in breakers)]
        return DryPenalty(self, np.array(ids, np.int64))


class DryPenalty:
    """The penalty as a logits processor.

    breakers: ids of tokens that no match goes across and that are never penalised: int64 [N]. A token is one if its
    text contains a breaker; a breaker that is spread over two tokens is not seen.
    """

    def __init__(self, options: Dry, breakers: NDArray[np.int64]):
        self._options = options
        self._breakers = breakers

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Subtract the penalties from logits [V], in place; token_ids: int64 [T], the prompt's included."""
        options = self._options
        if options.dry_penalty_last_n >= 0:
            token_ids = token_ids[max(0, len(token_ids) - options.dry_penalty_last_n) :]
        for token, length in self._matches(token_ids).items():
            exponent = length - options.dry_allowed_length
            logits[token] -= min(options.dry_multiplier * options.dry_base**exponent, LARGEST_PENALTY)
        return logits

    def _matches(self, tokens: NDArray[np.int64]) -> dict[int, int]:
        """Return the tokens that would prolong a repetition, each with the longest length that is repeated so far."""
        found: dict[int, int] = {}
        allowed = self._options.dry_allowed_length
        longest = allowed + int(MAX_EXPONENT / max(math.log(self._options.dry_base), 1e-3))
        breaks = np.flatnonzero(np.isin(tokens[::-1], self._breakers))
        longest = min(longest, len(tokens) - 1, *breaks[:1].tolist())
        ends = np.arange(len(tokens) - 1)  # where an earlier text may end that equals the last tokens
        for length in range(1, longest + 1):
            ends = ends[ends >= length - 1]
            ends = ends[tokens[ends - length + 1] == tokens[len(tokens) - length]]
            if not len(ends):
                break
            if length >= allowed:
                found.update(dict.fromkeys(tokens[ends + 1].tolist(), length))
        return {token: length for token, length in found.items() if token not in self._breakers}
