"""The state of one prompt while it generates, and what comes of it: its tokens, its text, a reason to end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor, apply_processors
from edgeformer.runtime.generation.sampling.logits_rules import Rules
from edgeformer.runtime.generation.sampling.sampling import Sampler, Sampling
from edgeformer.runtime.generation.sampling.structured_output import Constraint
from edgeformer.runtime.generation.sampling.token_logprobs import TokenLogprobs, token_logprobs
from edgeformer.runtime.generation.speculation.statistics import SpeculationStatistics
from edgeformer.runtime.steps.memory import Candidates
from edgeformer.runtime.steps.picture_rows import PictureRows
from edgeformer.runtime.text.streaming import TextStream, WholeText

DEFAULT_NEW_TOKENS = 256
"""New tokens at most, where neither the call nor the model's generation config says how many."""

FinishReason = Literal["eos", "stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The result for one prompt.

    Attributes:
        text: the new text up to the stop string, without special tokens; None for a bundle without a tokenizer.
        token_ids: the new tokens, the end-of-text token included.
        finish_reason: `eos`, `stop` (a stop string, or structured output that is complete), `length` (max_new_tokens)
            or `cancelled` (by the caller).
        prompt_tokens: tokens of the prompt, or of the encoder's source.
        prefill_seconds: time to run the prompt, or the encoder and the decoder's prompt.
        decode_seconds: time of all steps after the first new token.
        score: of a beam search (see `GenerationConfig.length_penalty`), None otherwise.
        logprobs: of each new token; None where the config does not ask for them.
        cached_tokens: those of the prompt whose keys and values were kept from earlier requests.
        speculation: counts of drafted tokens, where the config, a draft model or structured output asks for drafts;
            otherwise None.
        reasoning: what the model thought before the answer, which `text` then is, of a chat; None for no thinking.
    """

    text: str | None
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    score: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    cached_tokens: int = 0
    speculation: SpeculationStatistics | None = None
    reasoning: str | None = None


NO_RULES = Rules()


@dataclass
class Row:
    """The state of one prompt while it generates.

    Attributes:
        prompt: the decoder's tokens before the first new one.
        prompt_tokens: what `Generation` reports, where that is not the length of `prompt`.
        top_logprobs: how many of the most likely tokens `logprobs` gets at each place; None for no log-probabilities.
        source: the tokens that rules of the source read; None for the prompt's.
        shown_prompt: the prompt's tokens where `prompt` has numbers of pictures in it; what rules and drafts read.
        pictures: those of the prompt; None where it has none.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    eos: frozenset[int]
    sampling: Sampling
    stream: TextStream | WholeText | None
    rules: Rules = NO_RULES
    processors: Sequence[LogitsProcessor] = ()
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prompt_tokens: int | None = None
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    source: NDArray[np.int64] | None = None
    cached_tokens: int = 0
    speculation: SpeculationStatistics | None = None
    shown_prompt: Sequence[int] | None = None
    pictures: PictureRows | None = None

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.sampling)
        if self.source is None and self.rules.reads_source:
            self.source = np.array(self.prompt_ids, np.int64)
        self._changes_logits = bool(self.processors) or not self.rules.allows_all
        if self._changes_logits:
            self._ids = np.empty(len(self.prompt) + self.max_new_tokens, np.int64)
            self._ids[: len(self.prompt)] = self.prompt_ids

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt's tokens, in which a token stands for each state of a picture."""
        return self.prompt if self.shown_prompt is None else self.shown_prompt

    @property
    def candidate_count(self) -> int | None:
        """How many of the most likely tokens decide about the next one; None where the logits of all do."""
        if self._changes_logits or self.constraint or self.top_logprobs is not None:
            return None
        return self.sampling.candidate_count

    def advance(self, logits: NDArray[np.float32] | Candidates) -> str:
        """Choose the next token from logits [V], or among so many candidates; return the text that it completes."""
        if isinstance(logits, Candidates):
            token = int(logits.ids[self._sampler.choose(logits.logits)])
        else:
            token = self._choose(self._processed(logits) if self._changes_logits else logits)
            if self.top_logprobs is not None:
                self.logprobs.append(token_logprobs(logits, token, self.top_logprobs))
        self.tokens.append(token)
        if token in self.eos:
            self.finish_reason = "eos"
            piece = ""
        else:
            piece = self.stream.push(token) if self.stream else ""
            if self.constraint:
                self.constraint.accept(token)
            if (self.stream and self.stream.stopped) or (self.constraint and self.constraint.finished):
                self.finish_reason = "stop"
            elif len(self.tokens) >= self.max_new_tokens:
                self.finish_reason = "length"
        if self.finish_reason and self.stream:
            piece += self.stream.flush()
        self.text += piece
        return piece

    def _choose(self, logits: NDArray[np.float32]) -> int:
        """Choose from logits [V], among the tokens that the constraint allows."""
        if self.constraint is None:
            return self._sampler.choose(logits)
        ids = self.constraint.allowed()
        allowed = logits[ids]
        if self._changes_logits and allowed.max() == -np.inf:
            raise RequestError("the rules and logits processors ban every token that the structured output allows.")
        return int(ids[self._sampler.choose(allowed)])

    def _processed(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy of the logits [V] after the rules and the user's processors."""
        prompt, new = len(self.prompt), len(self.tokens)
        if new:
            self._ids[prompt + new - 1] = self.tokens[-1]
        ids, logits = self._ids[: prompt + new], logits.copy()
        self.rules.apply(logits, ids, prompt_length=prompt, max_length=len(self._ids), eos=self.eos, source=self.source)
        if self.processors:
            logits = apply_processors(self.processors, ids.copy(), logits.astype(np.float32, copy=False))
            if logits.max() == -np.inf:
                raise RequestError("the logits processors leave no token: all logits are -inf.")
        return logits

    def cancel(self) -> None:
        """End a row that has not ended, with the text of the tokens that it has."""
        self.finish_reason = "cancelled"
        self.text += self.stream.flush() if self.stream else ""

    def result(self) -> Generation:
        """Return the result of a row that is finished."""
        assert self.finish_reason is not None
        return Generation(
            text=self.text if self.stream else None,
            token_ids=self.tokens,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt) if self.prompt_tokens is None else self.prompt_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            logprobs=None if self.top_logprobs is None else self.logprobs,
            cached_tokens=self.cached_tokens,
            speculation=self.speculation,
        )


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token as it is generated.

    text: the text that it completes, which may be empty, and may hold text of tokens before it. logprobs: None where
    the config does not ask for them. reasoning: text that the model thinks, of a chat.
    """

    token_id: int
    text: str
    logprobs: TokenLogprobs | None
    reasoning: str = ""


def candidate_count(rows: Sequence[Row]) -> int | None:
    """Return how many of the most likely tokens decide about the next one of each row; None where all do for one."""
    counts = [row.candidate_count for row in rows]
    return None if None in counts else max(filter(None, counts), default=None)
