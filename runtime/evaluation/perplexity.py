"""How well a decoder foretells a text: perplexity, and bits per byte, which compares models of different tokenizers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.causal_lm import CausalLM
from edgeformer.runtime.decoder import PREFILL_CHUNK
from edgeformer.runtime.model import Model

DEFAULT_WINDOW = 2048
"""Tokens that are read at once, where the model's context is longer: the cost of a text grows with it."""

Progress = Callable[[float], None]
"""Called with the part that is done, 0 to 1."""


def silent(part: float) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """What a text costs a model. nats: the sum of −ln p over its predicted tokens; bytes: of those, in UTF-8."""

    tokens: int
    bytes: int
    nats: float
    window: int

    @property
    def perplexity(self) -> float:
        """Of a token: exp(nats / tokens)."""
        return perplexity(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """The same information by the length of the text, whatever its tokens: nats / ln 2 / bytes."""
        return self.nats / math.log(2) / self.bytes


def perplexity(nats: float, tokens: int) -> float:
    """exp(nats / tokens); infinite where that is beyond float64."""
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def surprise(logits: NDArray[Any], tokens: Sequence[int]) -> float:
    """−ln of the probability that any of these tokens comes next, in nats; logits [V]."""
    values = logits.astype(np.float64)
    values -= values.max()
    return float(np.log(np.exp(values).sum()) - np.logaddexp.reduce(values[list(tokens)]))


def score_text(model: Model, text: str, window: int | None = None, progress: Progress = silent) -> TextScore:
    """Let a decoder foretell every token of a text from those before it.

    The text is read in windows that overlap by half, and every token is predicted once: in the first window all tokens
    but the first, which nothing stands before, in each later one those of its second half. So a token has all tokens
    before it for context, or at least half a window of them.

    window: tokens; None for the model's context, DEFAULT_WINDOW at most. Where the tokenizer begins a text with a
    special token, the text's own first token is predicted from that. Raises RequestError.
    """
    if not isinstance(model, CausalLM):
        raise RequestError(
            f"a text's perplexity is that of a decoder which continues it, and this bundle is a {model.manifest.task}."
        )
    context = model.manifest.context_length
    window = min(context, DEFAULT_WINDOW) if window is None else window
    if not 2 <= window <= context:
        raise RequestError(f"the window is {window} tokens; it must be 2 to {context}, the model's context.")
    encoding = model.require_tokenizer().backend.encode(text)
    tokens = model.encode(encoding.ids, "text") if encoding.ids else []
    if len(tokens) < 2:
        raise RequestError(f"the text has {len(tokens)} tokens; it must have two, for one to be predicted.")
    nats = 0.0
    for start, first, end in windows(len(tokens), window):
        nats += _read(model, tokens[start:end], first - start)
        progress(end / len(tokens))
    predicted = text[encoding.offsets[0][1] :]  # a special token ends where it begins, at 0
    return TextScore(tokens=len(tokens) - 1, bytes=len(predicted.encode()), nats=nats, window=window)


def windows(tokens: int, window: int) -> Iterator[tuple[int, int, int]]:
    """What is read at once of so many tokens: (start, first, end), those from `first` on to be predicted."""
    first, end = 1, min(window, tokens)
    yield 0, first, end
    while end < tokens:
        first, start = end, end - (window + 1) // 2
        end = min(start + window, tokens)
        yield start, first, end


def _read(model: CausalLM, tokens: Sequence[int], first: int) -> float:
    """Nats of the tokens from `first` on; logits are made, and used up, a chunk at a time."""
    decoder = model.new_decoder(1, len(tokens) - 1)
    nats = 0.0
    for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
        nexts = tokens[start + 1 : start + PREFILL_CHUNK + 1]
        logits = decoder.prefill_all(0, tokens[start : start + len(nexts)])
        skipped = max(first - start - 1, 0)
        nats += sum(surprise(row, [token]) for row, token in zip(logits[skipped:], nexts[skipped:], strict=True))
    return nats
