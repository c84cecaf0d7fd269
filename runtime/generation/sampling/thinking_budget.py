"""A budget of thinking ends it: after so many tokens, the tokens of the mark that ends it are forced one by one."""

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.text.thinking.reader import ThinkingStream
from edgeformer.runtime.text.tokenizer import Tokenizer

MOST_BYTES = 3
"""Tokens that a character may still need, where the budget ends within it."""


def thinking_budget(tokenizer: Tokenizer | None, budget: int) -> "ThinkingBudget":
    """Return the logits processor of one row. Raises RequestError for a model without marks of thinking."""
    if tokenizer is None or tokenizer.thinking_format is None:
        raise RequestError(
            "thinking_budget: neither the chat template nor the tokenizer of this model has marks of thinking.",
            field="thinking_budget",
        )
    return ThinkingBudget(tokenizer, budget)


class ThinkingBudget:
    """The budget as a logits processor of one row, which is called for each of its new tokens."""

    def __init__(self, tokenizer: Tokenizer, budget: int):
        self._tokenizer = tokenizer
        self._budget = budget
        assert tokenizer.thinking_format is not None
        self._closing = tokenizer.encode_marks(tokenizer.thinking_format.forced_closing)
        self._stream: ThinkingStream | None = None
        self._read = 0  # tokens of the row that the stream has, or that are of the prompt
        self._waited = 0
        self._forced = 0  # tokens of the closing that were forced

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Leave the next token of the closing alone, in logits [V], where the budget is spent."""
        if self._stream is None:
            is_open = self._tokenizer.opens_thinking(token_ids[-64:].tolist())
            self._stream = ThinkingStream(self._tokenizer, self._tokenizer.thinking_format, is_open=is_open)
            self._read = len(token_ids)
        for token in token_ids[self._read :].tolist():
            self._stream.push(token)
        self._read = len(token_ids)
        self._forced %= len(self._closing)
        if not self._forced and not self._is_spent(self._stream):
            return logits
        token = self._closing[self._forced]
        self._forced += 1
        kept = max(float(logits[token]), 0.0)
        logits[:] = -np.inf
        logits[token] = kept
        return logits

    def _is_spent(self, stream: ThinkingStream) -> bool:
        if not stream.thinking or stream.reasoning_tokens < self._budget:
            return False
        self._waited += 1
        return not stream.is_incomplete or self._waited > MOST_BYTES
