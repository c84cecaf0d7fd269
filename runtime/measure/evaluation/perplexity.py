"""Score a text with a decoder: perplexity, and bits per byte, which compares models with different tokenizers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.sampling.token_logprobs import TokenLogprobs, token_logprobs
from edgeformer.runtime.steps.memory import PREFILL_CHUNK
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.model import Model

DEFAULT_WINDOW = 2048
"""Window in tokens where the model's context is longer; the cost of a text grows with the window."""

Progress = Callable[[float], None]
"""Called with the fraction that is done, 0 to 1."""


def silent(fraction: float) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The score of a text.

    tokens: predicted tokens. bytes: their length in UTF-8. nats: the sum of −ln p over them. window: in tokens.
    """

    tokens: int
    bytes: int
    nats: float
    window: int

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp(nats / tokens)."""
        return perplexity(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, which does not depend on the tokenizer: nats / ln 2 / bytes."""
        return self.nats / math.log(2) / self.bytes


def perplexity(nats: float, tokens: int) -> float:
    """Return exp(nats / tokens), infinite beyond float64."""
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def surprise(logits: NDArray[Any], tokens: Sequence[int]) -> float:
    """Return −ln of the probability that any of these tokens comes next, in nats, for logits [V]."""
    values = logits.astype(np.float64)
    values -= values.max()
    return float(np.log(np.exp(values).sum()) - np.logaddexp.reduce(values[list(tokens)]))


def score_text(model: Model, text: str, window: int | None = None, progress: Progress = silent) -> TextScore:
    """Return the score of a text: the probability of every token given the ones before it.

    The text runs in windows that overlap by half, and every token is predicted once: in the first window all tokens but
    the first, which has no token before it, in each later window those of its second half. So a token has all tokens
    before it as context, or at least half a window of them.

    window: in tokens; None for the model's context, DEFAULT_WINDOW at most. Where the tokenizer begins a text with a
    special token, the text's first token is predicted from that. Raises RequestError for a model that is not
    decoder-only, a window outside its context, and a text of fewer than two tokens.
    """
    if not isinstance(model, CausalLM):
        raise RequestError(
            f"a text's perplexity is that of a decoder which continues it, and this bundle is a {model.manifest.task}."
        )
    context = model.manifest.context_length
    window = min(context, DEFAULT_WINDOW) if window is None else window
    if not 2 <= window <= context:
        raise RequestError(f"the window is {window} tokens; it must be 2 to {context}, the model's context.")
    encoding = model.require_tokenizer().encoding(text)
    tokens = model.encode(encoding.ids, "text") if encoding.ids else []
    if len(tokens) < 2:
        raise RequestError(f"the text has {len(tokens)} tokens; it must have two, for one to be predicted.")
    nats = 0.0
    for start, first, end in windows(len(tokens), window):
        nats += _read(model, tokens[start:end], first - start)
        progress(end / len(tokens))
    predicted = text[encoding.offsets[0][1] :]  # a special token has the empty span at 0
    return TextScore(tokens=len(tokens) - 1, bytes=len(predicted.encode()), nats=nats, window=window)


def prompt_logprobs(
    model: CausalLM, tokens: Sequence[int], top_logprobs: int = 0, adapter: str | None = None
) -> list[TokenLogprobs]:
    """Return the log-probability of each token of a prompt but the first, given the ones before it.

    top_logprobs: how many of the most likely tokens each place has. adapter: the name of a LoRA adapter of the bundle.
    Raises RequestError for more tokens than the context has.
    """
    found: list[TokenLogprobs] = []
    decoder = model.new_decoder(1, max(1, len(tokens) - 1), adapter)
    for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
        nexts = tokens[start + 1 : start + PREFILL_CHUNK + 1]
        logits = decoder.prefill_all(0, tokens[start : start + len(nexts)])
        found += [token_logprobs(row, token, top_logprobs) for row, token in zip(logits, nexts, strict=True)]
    return found


def windows(tokens: int, window: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows over a number of tokens: (start, first, end), of which those from `first` on are predicted."""
    first, end = 1, min(window, tokens)
    yield 0, first, end
    while end < tokens:
        first, start = end, end - (window + 1) // 2
        end = min(start + window, tokens)
        yield start, first, end


def _read(model: CausalLM, tokens: Sequence[int], first: int) -> float:
    """Return the nats of the tokens from `first` on; logits are computed in chunks, to save memory."""
    decoder = model.new_decoder(1, len(tokens) - 1)
    nats = 0.0
    for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
        nexts = tokens[start + 1 : start + PREFILL_CHUNK + 1]
        logits = decoder.prefill_all(0, tokens[start : start + len(nexts)])
        skipped = max(first - start - 1, 0)
        nats += sum(surprise(row, [token]) for row, token in zip(logits[skipped:], nexts[skipped:], strict=True))
    return nats
