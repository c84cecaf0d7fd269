"""Rules of generation configs that forbid, force or penalise tokens by changing logits, given the tokens before them.

The rules and their order are those of transformers' `generate`: repetition penalty, repeated n-grams, bad words,
minimum length, forced first and last token, invalid values, decay of length, suppressed tokens; biases of sequences
come first. A later rule overrules an earlier one. The biases of OpenAI's API come before the repetition penalty, and
its two penalties behind it, as in llama.cpp and vLLM.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.options.generation import RuleOptions
from edgeformer.runtime.steps.decode_graph import Logits

Ids = NDArray[np.int64]


class Rules(RuleOptions):
    """The options that restrict tokens, as `GenerationConfig.rules` gives them. By default any may come.

    Lengths count tokens, the prompt's included. Source: `_get_logits_processor` of transformers 5.23.
    """

    def check(self, vocab_size: int) -> None:
        """Raise RequestError if a rule names tokens outside the vocabulary; suppressed tokens may be outside."""
        for name, ids in self._token_ids():
            if max(ids, default=0) >= vocab_size:
                raise RequestError(
                    f"{name} has the token id {max(ids)}, outside 0 to {vocab_size - 1}, the model's vocabulary.",
                    field=name,
                )

    def _token_ids(self) -> list[tuple[str, Sequence[int]]]:
        """Return the options that name tokens, but for those that suppress them, with the ids of each."""
        forced = ("forced_bos_token_id", self.forced_bos_token_id), ("forced_eos_token_id", self.forced_eos_token_id)
        return [
            *((name, [id]) for name, id in forced if id is not None),
            ("logit_bias", [token for token, _ in self._biases]),
            ("bad_words_ids", [id for word in self.bad_words_ids for id in word]),
            ("sequence_bias", [id for words, _ in self.sequence_bias for id in words]),
        ]

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

        Args:
            logits: [R, V] or [V] of any float dtype, for R rows; beam search gives log-probabilities.
            tokens: all tokens so far, [R, T] or [T], the first `prompt_length` of them the prompt's.
            max_length: prompt and new tokens together, where generation ends.
            eos: the tokens that end a sequence.
            source: [N], for rules that read it: the tokens of the encoder's source, or of a decoder's prompt; None for
                a model of speech, which has none.
        """
        logits, tokens = np.atleast_2d(logits), np.atleast_2d(tokens)
        length = tokens.shape[1]
        if self.logit_bias:
            ids, biases = self._bias_arrays
            logits[:, ids] += biases.astype(logits.dtype)
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
        assert not isinstance(self.logit_bias, Mapping), "GenerationConfig makes pairs of it"
        return self.logit_bias

    @cached_property
    def _bias_arrays(self) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids and numbers of logit_bias, which are added at every step."""
        return np.array([id for id, _ in self._biases], np.int64), np.array([bias for _, bias in self._biases])

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
