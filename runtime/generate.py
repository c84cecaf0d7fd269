"""The generation loop: rows with prompts in, tokens and text out, until each row has a reason to end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.decoder import Decoder, Logits
from edgeformer.runtime.logits_rules import Rules
from edgeformer.runtime.sampling import Sampler, Sampling
from edgeformer.runtime.streaming import TextStream

DEFAULT_NEW_TOKENS = 256

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated for one prompt.

    text: without special tokens, up to the stop string; None for a bundle without a tokenizer. token_ids: the new
    tokens, the end-of-text token included. finish_reason: `eos`, `stop` (a stop string) or `length` (max_new_tokens).
    prefill_seconds: from the prompt's first to its last token, or the source's; decode_seconds: all steps after the
    first new token. score: of a beam search, None otherwise.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    score: float | None = None


NO_RULES = Rules()


@dataclass
class Row:
    """One prompt on its way through the loop."""

    prompt: Sequence[int]
    max_new_tokens: int
    eos: frozenset[int]
    sampling: Sampling
    stream: TextStream | None
    rules: Rules = NO_RULES
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.sampling, self.prompt)

    def advance(self, logits: NDArray[np.float32]) -> str:
        """Choose the next token; return the text that it completes."""
        token = self._sampler.choose(logits if self.rules.allows_all else self._ruled(logits))
        self.tokens.append(token)
        if token in self.eos:
            self.finish_reason = "eos"
            piece = ""
        else:
            piece = self.stream.push(token) if self.stream else ""
            if self.stream and self.stream.stopped:
                self.finish_reason = "stop"
            elif len(self.tokens) >= self.max_new_tokens:
                self.finish_reason = "length"
        if self.finish_reason and self.stream:
            piece += self.stream.flush()
        self.text += piece
        return piece

    def _ruled(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits = logits.copy()
        before = np.array([*self.prompt, *self.tokens], np.int64)
        most = len(self.prompt) + self.max_new_tokens
        self.rules.apply(logits, before, prompt_length=len(self.prompt), max_length=most, eos=self.eos)
        return logits

    def result(self) -> Generation:
        """What came of it, once finished."""
        assert self.finish_reason is not None
        return Generation(
            text=self.text if self.stream else None,
            token_ids=self.tokens,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt) if self.prompt_tokens is None else self.prompt_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
        )


def run_rows(decoder: Decoder, rows: Sequence[Row], first_logits: Logits | None = None) -> Iterator[tuple[int, str]]:
    """Prefill each row by itself, then decode all together; yield (row, new text) after each token.

    Prompts of different lengths need no padding this way, and a prompt's result does not depend on its neighbours.
    first_logits: [B, V], where the prompts were fed already.
    """
    for index, row in enumerate(rows):
        if first_logits is not None:
            yield index, row.advance(first_logits[index])
            continue
        start = time.perf_counter()
        logits = decoder.prefill(index, row.prompt)
        row.prefill_seconds = time.perf_counter() - start
        yield index, row.advance(logits)
    while active := [index for index, row in enumerate(rows) if row.finish_reason is None]:
        start = time.perf_counter()
        mask = None if len(active) == len(rows) else np.isin(np.arange(len(rows)), active)
        logits = decoder.decode_one_token([row.tokens[-1] for row in rows], mask)
        pieces = [(index, rows[index].advance(logits[index])) for index in active]
        elapsed = time.perf_counter() - start
        for index, piece in pieces:
            rows[index].decode_seconds += elapsed
            yield index, piece


class GenerationStream(Iterator[str]):
    """Pieces of text as they are generated; `finish` runs to the end and returns the `Generation`."""

    def __init__(self, row: Row, decoder: Decoder, first_logits: Logits | None = None):
        self._row = row
        self._pieces = (piece for _, piece in run_rows(decoder, [row], first_logits) if piece)

    def __next__(self) -> str:
        return next(self._pieces)

    def finish(self) -> Generation:
        """Generate what is left; return the whole."""
        for _ in self._pieces:
            pass
        return self._row.result()
