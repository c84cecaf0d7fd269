"""Rules of generation configs that forbid, force or penalise tokens by changing logits, given the tokens before them.

The rules and their order are those of transformers' `generate`: repetition penalty, repeated n-grams, bad words,
minimum length, forced first and last token, suppressed tokens. A later rule overrules an earlier one. The biases of
OpenAI's API come before the repetition penalty, and its two penalties behind it, as in llama.cpp and vLLM.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.decoder import Logits

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options that restrict tokens; `GenerationConfig` has the meaning and range of each. By default any may come.

    Lengths count tokens, the prompt's included.

    Raises RequestError for a value outside its range. Source: `_get_logits_processor` of transformers 5.23.
    """

    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        # Lists, as they come from JSON, would make equal rules differ.
        object.__setattr__(self, "bad_words_ids", tuple(tuple(word) for word in self.bad_words_ids))
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        biases = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        object.__setattr__(self, "logit_bias", tuple(sorted((token, bias) for token, bias in biases)))
        for token, bias in self._biases:
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"logit_bias of token {token} is {bias}; it must be a finite number, or -inf (ban).")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} is {getattr(self, name)}; it must be finite; 0 is off.")
        if not self.repetition_penalty > 0:
            raise RequestError(f"repetition_penalty is {self.repetition_penalty}; it must be above 0; 1 is off.")
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be 0 (off) or larger.")
        if not all(self.bad_words_ids):
            raise RequestError("bad_words_ids has an empty sequence; each must have at least one token id.")
        for name, ids in self._token_ids():
            if any(id < 0 for id in ids):
                raise RequestError(f"{name} has the token id {min(ids)}; ids must be 0 or larger.")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) in self.suppress_tokens:
                raise RequestError(
                    f"{name} is {getattr(self, name)}, which is in suppress_tokens too, so that no token could come. "
                    "Take it out of one of them; min_new_tokens delays an end."
                )

    def _token_ids(self) -> list[tuple[str, Sequence[int]]]:
        forced = ("forced_bos_token_id", self.forced_bos_token_id), ("forced_eos_token_id", self.forced_eos_token_id)
        return [
            *((name, [id]) for name, id in forced if id is not None),
            ("logit_bias", [token for token, _ in self._biases]),
            ("bad_words_ids", [id for word in self.bad_words_ids for id in word]),
            ("suppress_tokens", self.suppress_tokens),
            ("begin_suppress_tokens", self.begin_suppress_tokens),
        ]

    def check(self, vocab_size: int) -> None:
        """Raise RequestError if a rule names tokens outside the vocabulary; suppressed tokens may be outside."""
        for name, ids in self._token_ids():
            if name not in ("suppress_tokens", "begin_suppress_tokens") and max(ids, default=0) >= vocab_size:
                raise RequestError(
                    f"{name} has the token id {max(ids)}, outside 0 to {vocab_size - 1}, the model's vocabulary."
                )

    @property
    def allows_all(self) -> bool:
        """Return whether `apply` never changes anything, so that logits need not be copied for it."""
        return self == Rules()

    def apply(self, logits: Logits, tokens: Ids, *, prompt_length: int, max_length: int, eos: frozenset[int]) -> None:
        """Change the logits of the next token in place.

        logits: [R, V] or [V] of any float dtype, for R rows; beam search gives log-probabilities. tokens: all tokens so
        far, [R, T] or [T], the first `prompt_length` of them the prompt's. max_length: prompt and new tokens together,
        where generation ends. eos: the tokens that end a sequence.
        """
        logits, tokens = np.atleast_2d(logits), np.atleast_2d(tokens)
        length = tokens.shape[1]
        for token, bias in self._biases:
            logits[:, token] += bias
        if self.repetition_penalty != 1:
            penalise(logits, tokens, self.repetition_penalty)
        if self.presence_penalty or self.frequency_penalty:
            penalise_counts(logits, tokens[:, prompt_length:], self.presence_penalty, self.frequency_penalty)
        if 0 < self.no_repeat_ngram_size <= length:
            _ban_repeated_ngrams(logits, tokens, self.no_repeat_ngram_size)
        for starts, ends in self._words:
            _ban_words(logits, tokens, starts, ends, eos)
        if length < self.min_length or length - prompt_length < self.min_new_tokens:
            logits[:, list(eos)] = -np.inf
        if self.forced_bos_token_id is not None and length == 1:
            _force(logits, self.forced_bos_token_id)
        if self.forced_eos_token_id is not None and length == max_length - 1:
            _force(logits, self.forced_eos_token_id)
        if self.suppress_tokens:
            _suppress(logits, self.suppress_tokens)
        if self.begin_suppress_tokens and length == self._begin(prompt_length):
            _suppress(logits, self.begin_suppress_tokens)

    def _begin(self, prompt_length: int) -> int:
        """Return the length at which the first token that may be chosen freely comes."""
        return prompt_length + (prompt_length == 1 and self.forced_bos_token_id is not None)

    @property
    def _biases(self) -> Sequence[tuple[int, float]]:
        assert not isinstance(self.logit_bias, Mapping), "the constructor makes pairs of it"
        return self.logit_bias

    @cached_property
    def _words(self) -> list[tuple[Ids, Ids]]:
        """Return bad words grouped by length L: all tokens but the last [W, L - 1], and the last [W]."""
        arrays = [np.array(list(words), np.int64) for _, words in groupby(sorted(self.bad_words_ids, key=len), len)]
        return [(words[:, :-1], words[:, -1]) for words in arrays]


def penalise(logits: Logits, tokens: Ids, penalty: float) -> None:
    """Make tokens [R, T] that came before less likely in logits [R, V], in place. Source: arXiv 1909.05858."""
    # A token that came twice is written twice, with one value.
    rows = np.arange(len(tokens))[:, None]
    values = logits[rows, tokens]
    logits[rows, tokens] = np.where(values > 0, values / penalty, values * penalty)


def penalise_counts(logits: Logits, tokens: Ids, presence: float, frequency: float) -> None:
    """Subtract presence + count · frequency from logits [R, V] of the new tokens [R, N] so far, in place.

    Source: `presence_penalty` and `frequency_penalty` of OpenAI's API; the prompt does not count, as in vLLM.
    """
    for row, new in zip(logits, tokens, strict=True):
        ids, counts = np.unique(new, return_counts=True)
        row[ids] -= (presence + frequency * counts).astype(row.dtype)


def _ban_repeated_ngrams(logits: Logits, tokens: Ids, size: int) -> None:
    """Ban every token that would repeat an n-gram of `size` tokens."""
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1)  # [R, T - size + 1, size]
    last = tokens[:, None, tokens.shape[1] - size + 1 :]  # [R, 1, size - 1]
    rows, places = (ngrams[:, :, :-1] == last).all(axis=2).nonzero()
    logits[rows, ngrams[rows, places, -1]] = -np.inf


def _ban_words(logits: Logits, tokens: Ids, starts: Ids, ends: Ids, eos: frozenset[int]) -> None:
    """Ban the last token, ends [W], of words whose other tokens, starts [W, L - 1], are the last ones of a row."""
    length = starts.shape[1]
    if length == 0:
        logits[:, [token for token in ends.tolist() if token not in eos]] = -np.inf
    elif length <= tokens.shape[1]:
        rows, words = (tokens[:, None, -length:] == starts).all(axis=2).nonzero()
        logits[rows, ends[words]] = -np.inf


def _force(logits: Logits, token: int) -> None:
    logits[:] = -np.inf
    logits[:, token] = 0


def _suppress(logits: Logits, tokens: Iterable[int]) -> None:
    vocab_size = logits.shape[1]
    logits[:, [token for token in tokens if token < vocab_size]] = -np.inf
