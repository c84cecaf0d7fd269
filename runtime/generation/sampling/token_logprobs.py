"""Log-probabilities of generated tokens.

They are of the model's own distribution: the log-softmax of its logits, before biases, penalties, other rules,
temperature and filters. vLLM and llama.cpp return the same by default; so a token's number does not depend on how it
was drawn, and a token that a rule forced may have a small one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The natural logarithm of a generated token's probability, and those of the most likely tokens at its place.

    top: pairs of a token id and its log-probability, most likely first; as many as `top_logprobs` asked for. The
    generated token is among them only if it is one of the most likely.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprobs:
    """Return the log-probability of a token and of the `count` most likely ones, from the model's logits [V]."""
    values = logits.astype(np.float64)
    peak = values.max()
    total = peak + np.log(np.exp(values - peak).sum())
    count = min(count, len(values))
    top = np.argpartition(-values, count - 1)[:count] if count else np.empty(0, np.int64)
    top = top[np.lexsort((top, -values[top]))]
    pairs = tuple((int(id), float(values[id] - total)) for id in top)
    return TokenLogprobs(token, float(values[token] - total), pairs)
