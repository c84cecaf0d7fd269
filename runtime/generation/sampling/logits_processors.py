"""Logits processors of the user's own: functions that change logits before a token is chosen.

    def no_digits(token_ids, logits):
        logits[digit_ids] = -np.inf
        return logits

    model.generate("Once", logits_processors=[no_digits])

They run after the rules of the generation config and before temperature and its filters, as in transformers.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError


class LogitsProcessor(Protocol):
    """A function of the tokens so far and the next token's logits, which returns the logits to choose from.

    It is called once per row and step. token_ids: int64 [T], the prompt's tokens (of an encoder-decoder the decoder's)
    and the new ones. logits: float32 [V], a copy that may be changed in place; in a beam search the log-probabilities.
    It returns an array [V]; -inf bans a token.
    """

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Return the logits [V] to choose from."""


def apply_processors(
    processors: Sequence[LogitsProcessor], token_ids: NDArray[np.int64], logits: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the logits [V] of one row after all processors, in their order.

    Raises RequestError for a result of another shape and for NaN.
    """
    for processor in processors:
        result = np.asarray(processor(token_ids, logits))
        if result.shape != logits.shape:
            raise RequestError(
                f"the logits processor {_name(processor)} returned an array of shape {list(result.shape)}; it must "
                f"return logits of shape {list(logits.shape)}."
            )
        logits = result.astype(np.float32, copy=False)
        if np.isnan(logits).any():
            raise RequestError(f"the logits processor {_name(processor)} returned NaN; it must return numbers or -inf.")
    return logits


def _name(processor: LogitsProcessor) -> str:
    return getattr(processor, "__name__", type(processor).__name__)
