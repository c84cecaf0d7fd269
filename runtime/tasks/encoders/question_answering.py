"""Find the answer to a question in a text: the best spans of the tokens that `QuestionAnsweringHead` scores.

A text longer than the model's context is read in windows that overlap. As in transformers 4's question-answering
pipeline, the score of a span is the probability that the answer starts at its first token times that it ends at its
last one, each a softmax over the tokens of the text in one window and the first token, which stands for no answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.request_values import text_or_ids
from edgeformer.runtime.text.tokenizer import Tokenizer

OVERLAP = 128
"""Tokens that two windows of a long text share, at most half of the tokens that a window has for the text."""

ANSWER_TOKENS = 15
"""Tokens of an answer at most, unless the call says otherwise."""

Logits = Callable[[list[tuple[list[int], list[int]]]], NDArray[np.float32]]
"""Returns the logits [B, S, 2] of token ids and types."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A part of a text that answers a question.

    Attributes:
        text: the answer; empty for no answer.
        score: its probability.
        start, end: its place, text = context[start:end] in characters.
    """

    text: str
    score: float
    start: int
    end: int


def read_windows(tokenizer: Tokenizer, question: Any, context: Any, max_length: int) -> list[Any]:
    """Return the encodings of a question with each window of a context. Raises RequestError for what has no answer."""
    for name, value in (("question", question), ("context", context)):
        if not isinstance(text_or_ids(name, value), str) or not value.strip():
            raise RequestError(f"{name} is {value!r:.60}; it must be a text, which is not empty.")
    alone = len(tokenizer.encode_pair(question, "")[0])
    room = max_length - alone
    if room < 2:
        raise RequestError(
            f"the question has {alone} tokens of the model's {max_length}, which leaves no room for a text. Shorten it."
        )
    return tokenizer.encode_windows(question, context, max_length, min(OVERLAP, room // 2))


def best_answers(
    windows: Sequence[Any], logits: Sequence[NDArray[np.float32]], context: str, top_k: int, max_tokens: int
) -> list[Answer]:
    """Return the top_k best answers, no two of the same place; best first.

    windows: encodings. logits: [S, 2] of each. max_tokens: of an answer.
    """
    found: dict[tuple[int, int], float] = {}
    for window, scores in zip(windows, logits, strict=True):
        for first, last, score in _best_spans(window, scores, top_k, max_tokens):
            place = _characters(window, first, last)
            found[place] = max(score, found.get(place, 0.0))
    best = sorted(found.items(), key=lambda each: -each[1])[:top_k]
    return [Answer(text=context[start:end], score=score, start=start, end=end) for (start, end), score in best]


def no_answer(windows: Sequence[Any], logits: Sequence[NDArray[np.float32]]) -> Answer:
    """Return the answer that is none, whose score is the least of all windows: an answer in one of them suffices."""
    columns = [_probabilities(*each) for each in zip(windows, logits, strict=True)]
    return Answer(text="", score=min(float(start[0] * end[0]) for start, end in columns), start=0, end=0)


def _probabilities(window: Any, logits: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities of each token as the first and as the last one of the answer: two float64 [S]."""
    possible = np.array([sequence == 1 for sequence in window.sequence_ids])
    possible[0] = True
    columns = np.where(possible[:, None], logits.astype(np.float64), -np.inf)
    exponentials = np.exp(columns - columns.max(0))
    start, end = (exponentials / exponentials.sum(0)).T
    return start, end


def _best_spans(window: Any, logits: NDArray[np.float32], count: int, max_tokens: int) -> list[tuple[int, int, float]]:
    """Return the first and last token and the score of the best spans of a window; the first token takes no part."""
    start, end = _probabilities(window, logits)
    tokens = np.array([place for place, sequence in enumerate(window.sequence_ids) if sequence == 1])
    if not tokens.size:
        return []
    size = tokens.size
    # Row n has the spans of n + 1 tokens, by their first one. A square of all pairs is too large for long contexts.
    scores = np.full((min(max_tokens, size), size), -1.0)
    for more in range(len(scores)):
        scores[more, : size - more] = start[tokens[: size - more]] * end[tokens[more:]]
    best = np.argsort(-scores, axis=None, kind="stable")[:count].tolist()
    spans = [(place // size, place % size) for place in best if scores.flat[place] >= 0]
    return [(int(tokens[i]), int(tokens[i + more]), float(scores[more, i])) for more, i in spans]


def _characters(window: Any, first: int, last: int) -> tuple[int, int]:
    """Return the characters of the whole words from a first to a last token."""
    words = [window.word_ids[token] for token in (first, last)]
    start, end = (None if word is None else window.word_to_chars(word, 1) for word in words)
    return (start or window.offsets[first])[0], (end or window.offsets[last])[1]
