"""The generation loop: rows with prompts in, tokens and text out, until each row has a reason to end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.decoder import StaticDecoder
from edgeformer.runtime.sampling import Sampler, Sampling
from edgeformer.runtime.streaming import TextStream

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated for one prompt.

    text: without special tokens, up to the stop string; None for a bundle without a tokenizer. token_ids: the new
    tokens, the end-of-text token included. finish_reason: `eos`, `stop` (a stop string) or `length` (max_new_tokens).
    prefill_seconds: from the prompt's first to its last token; decode_seconds: all steps after the first new token.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float


@dataclass
class Row:
    """One prompt on its way through the loop."""

    prompt: Sequence[int]
    max_new_tokens: int
    eos: frozenset[int]
    sampling: Sampling
    stream: TextStream | None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.sampling, self.prompt)

    def advance(self, logits: NDArray[np.float32]) -> str:
        """Choose the next token; return the text that it completes."""
        token = self._sampler.choose(logits)
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

    def result(self) -> Generation:
        """What came of it, once finished."""
        assert self.finish_reason is not None
        return Generation(
            text=self.text if self.stream else None,
            token_ids=self.tokens,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
        )


def run_rows(decoder: StaticDecoder, rows: Sequence[Row]) -> Iterator[tuple[int, str]]:
    """Prefill each row by itself, then decode all together; yield (row, new text) after each token.

    Prompts of different lengths need no padding this way, and a prompt's result does not depend on its neighbours.
    """
    for index, row in enumerate(rows):
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
