"""How likely a text is, and how much it repeats itself: logits processors that change nothing, and a ratio."""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LastLogits:
    """A logits processor that keeps the logits [V] of the last step, and changes nothing."""

    logits: NDArray[np.float32]

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Keep a copy of the logits [V]; return them."""
        self.logits = logits.copy()
        return logits


class Likelihood:
    """A logits processor that sums the log-probabilities of the tokens that are chosen, and changes nothing."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._last: NDArray[np.float64] | None = None

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Count the token that was chosen last; return the logits [V]."""
        self._count(token_ids)
        exact = logits.astype(np.float64)
        exact -= exact.max()
        self._last = exact - np.log(np.exp(exact).sum())
        return logits

    def mean(self, tokens: Sequence[int]) -> float:
        """Return the mean log-probability of all tokens, the end token included."""
        self._count(tokens)
        return self._sum / len(tokens)

    def _count(self, tokens: Any) -> None:
        if self._last is not None:
            self._sum += float(self._last[tokens[-1]])


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Return by how much zlib shortens token ids as bytes. Source: `_retrieve_compression_ratio` of transformers."""
    width = int(math.log2(vocab_size) / 8) + 1
    content = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(content) / len(zlib.compress(content))
