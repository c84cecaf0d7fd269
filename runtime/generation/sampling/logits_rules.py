"""Rules of generation configs that forbid, force or penalise tokens by changing logits, given the tokens before them.

The rules and their order are those of transformers' `generate`: repetition penalty, repeated n-grams, bad words,
minimum length, forced first and last token, invalid values, decay of length, suppressed tokens; biases of sequences
come first. A later rule overrules an earlier one. The biases of OpenAI's API come before the repetition penalty, and
its two penalties behind it, as in llama.cpp and vLLM.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.steps.decode_graph import Logits

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options that restrict tokens; `GenerationConfig` has the meaning and range of each. By default any may come.

    Lengths count tokens, the prompt's included.

    Raises RequestError for a value outside its range. Source: `_get_logits_processor` of transformers 5.23.
    """

    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    sequence_bias: Sequence[tuple[Sequence[int], float]] = ()
    encoder_repetition_penalty: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        # Lists, as they come from JSON, would make equal rules differ.
        object.__setattr__(self, "bad_words_ids", tuple(tuple(word) for word in self.bad_words_ids))
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        biases = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        object.__setattr__(self, "logit_bias", tuple(sorted((token, bias) for token, bias in biases)))
        sequences = ((tuple(words), float(bias)) for words, bias in self.sequence_bias)
        object.__setattr__(self, "sequence_bias", tuple(sequences))
        if self.exponential_decay_length_penalty is not None:
            start, factor = self.exponential_decay_length_penalty
            object.__setattr__(self, "exponential_decay_length_penalty", (start, factor))
        self._check_ranges()

    def _check_ranges(self) -> None:
        for token, bias in self._biases:
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"logit_bias of token {token} is {bias}; it must be a finite number, or -inf (ban).")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} is {getattr(self, name)}; it must be finite; 0 is off.")
        for name in ("repetition_penalty", "encoder_repetition_penalty"):
            if not getattr(self, name) > 0:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be above 0; 1 is off.")
        for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}; it must be 0 (off) or larger.")
        if not all(self.bad_words_ids):
            raise RequestError("bad_words_ids has an empty sequence; each must have at least one token id.")
        if not all(words and math.isfinite(bias) for words, bias in self.sequence_bias):
            raise RequestError("sequence_bias has an empty sequence or a bias that is not finite.")
        if self.exponential_decay_length_penalty is not None and not (
            self.exponential_decay_length_penalty[0] >= 0 < self.exponential_decay_length_penalty[1] < math.inf
        ):
            raise RequestError(
                f"exponential_decay_length_penalty is {self.exponential_decay_length_penalty}; it must be a number of "
                "new tokens, 0 or larger, and a factor above 0."
            )
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
            ("sequence_bias", [id for words, _ in self.sequence_bias for id in words]),
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

    @cached_property
    def allows_all(self) -> bool:
        """Return whether `apply` never changes anything, so that logits need not be copied for it."""
        return self == Rules()

    @property
    def reads_source(self) -> bool:
        """Return whether a rule depends on the source of an encoder-decoder, or on the prompt of a decoder."""
        return self.encoder_repetition_penalty != 1 or self.encoder_no_repeat_ngram_size > 0

    def apply(
        self,
        logits: Logits,
        tokens: Ids,
        *,
        prompt_length: int,
        max_length: int,
        eos: frozenset[int],
        source: Ids | None = None,
    ) -> None:
        """Change the logits of the next token in place.

        logits: [R, V] or [V] of any float dtype, for R rows; beam search gives log-probabilities. tokens: all tokens so
        far, [R, T] or [T], the first `prompt_length` of them the prompt's. max_length: prompt and new tokens together,
        where generation ends. eos: the tokens that end a sequence. source: [N], for rules that read it: the tokens of
        the encoder's source, or of a decoder's prompt; None for a model of speech, which has none.
        """
        logits, tokens = np.atleast_2d(logits), np.atleast_2d(tokens)
        length = tokens.shape[1]
        for token, bias in self._biases:
            logits[:, token] += bias
        if self.sequence_bias:
            _add_biases(logits, tokens, self._sequence_biases)
        if self.encoder_repetition_penalty != 1 and source is not None:
            rows = np.broadcast_to(source, (len(logits), len(source)))
            penalise(logits, rows, 1 / self.encoder_repetition_penalty)
        if self.repetition_penalty != 1:
            penalise(logits, tokens, self.repetition_penalty)
        if self.presence_penalty or self.frequency_penalty:
            penalise_counts(logits, tokens[:, prompt_length:], self.presence_penalty, self.frequency_penalty)
        if 0 < self.no_repeat_ngram_size <= length:
            _ban_repeated_ngrams(logits, tokens, tokens, self.no_repeat_ngram_size)
        if 0 < self.encoder_no_repeat_ngram_size <= length + 1 and source is not None:
            _ban_repeated_ngrams(logits, tokens, source[None], self.encoder_no_repeat_ngram_size)
        for starts, ends in self._words:
            _ban_words(logits, tokens, starts, ends, eos)
        if length < self.min_length or length - prompt_length < self.min_new_tokens:
            logits[:, list(eos)] = -np.inf
        if self.forced_bos_token_id is not None and length == 1:
            _force(logits, self.forced_bos_token_id)
        if self.forced_eos_token_id is not None and length == max_length - 1:
            _force(logits, self.forced_eos_token_id)
        if self.remove_invalid_values:
            np.nan_to_num(logits, copy=False)  # infinities become the largest number of the precision
        if self.exponential_decay_length_penalty is not None:
            _decay(logits, length - prompt_length, self.exponential_decay_length_penalty, eos)
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

    @cached_property
    def _sequence_biases(self) -> list[tuple[Ids, Ids, NDArray[np.float32]]]:
        """Return sequence_bias grouped by length, as `_words`, with the biases [W]; of equal sequences the last."""
        # The order of sums is that of transformers: single tokens first, then lengths as they come.
        groups: dict[int, dict[tuple[int, ...], float]] = {1: {}}
        for words, bias in self.sequence_bias:
            groups.setdefault(len(words), {})[tuple(words)] = bias
        arrays = [(np.array(list(group), np.int64), list(group.values())) for group in groups.values() if group]
        return [(words[:, :-1], words[:, -1], np.array(biases, np.float32)) for words, biases in arrays]


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


def _ban_repeated_ngrams(logits: Logits, tokens: Ids, text: Ids, size: int) -> None:
    """Ban every token that would repeat an n-gram of `size` tokens of a text [R, N], or [1, N] for all rows."""
    if text.shape[1] < size:
        return
    ngrams = np.lib.stride_tricks.sliding_window_view(text, size, axis=1)  # [R, N - size + 1, size]
    ngrams = np.broadcast_to(ngrams, (len(tokens), *ngrams.shape[1:]))
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


def _add_biases(logits: Logits, tokens: Ids, groups: list[tuple[Ids, Ids, NDArray[np.float32]]]) -> None:
    """Add biases [W] to the last token, ends [W], of sequences whose other tokens are the last ones of a row."""
    added = np.zeros_like(logits)
    for starts, ends, biases in groups:
        if starts.shape[1] <= tokens.shape[1]:
            last = tokens[:, None, tokens.shape[1] - starts.shape[1] :]
            rows, words = (last == starts).all(axis=2).nonzero()
            np.add.at(added, (rows, ends[words]), biases[words].astype(added.dtype))
    logits += added


def _decay(logits: Logits, new_tokens: int, penalty: tuple[int, float], eos: frozenset[int]) -> None:
    """Raise end tokens by factor ** (tokens beyond the start) - 1 of their size; a banned one stays banned."""
    start, factor = penalty
    if new_tokens > start:
        ends = list(eos)
        sizes = np.abs(logits[:, ends])
        sizes[~np.isfinite(sizes)] = 0
        logits[:, ends] += sizes * (factor ** (new_tokens - start) - 1)


def _force(logits: Logits, token: int) -> None:
    logits[:] = -np.inf
    logits[:, token] = 0


def _suppress(logits: Logits, tokens: Iterable[int]) -> None:
    vocab_size = logits.shape[1]
    logits[:, [token for token in tokens if token < vocab_size]] = -np.inf
