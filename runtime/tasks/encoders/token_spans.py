"""Join labels of tokens to labelled spans of a text, as transformers' token-classification pipeline does.

Source: transformers/pipelines/token_classification.py of transformers 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.text.tokenizer import Tokenizer

Aggregation = Literal["simple", "first", "average", "max"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)

OUTSIDE = "O"
"""The label of tokens that belong to no span."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A labelled part of a text.

    Attributes:
        label: without the B- and I- that begin and continue a span.
        score: the mean of the probabilities of its tokens or words.
        text: text[start:end] of the whole text.
        start, end: its place in characters.
    """

    label: str
    score: float
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Piece:
    """A token or a word: its place, and the probabilities of all labels, float64 [labels]."""

    start: int
    end: int
    continues: bool
    probabilities: NDArray[np.float64]

    @property
    def best(self) -> int:
        """Return the number of the likeliest label."""
        return int(self.probabilities.argmax())


def find_spans(
    tokenizer: Tokenizer,
    text: str,
    probabilities: NDArray[np.float64],
    labels: Sequence[str],
    aggregation: Aggregation,
) -> list[Span]:
    """Return the spans of a text, in its order. probabilities: [S, labels] of its tokens."""
    pieces = list(_tokens(tokenizer, text, probabilities))
    if aggregation != "simple":
        pieces = [_word(word, aggregation) for word in _groups(pieces)]
    spans: list[list[_Piece]] = []
    for piece in pieces:
        begins, label = _split(labels[piece.best])
        if spans and not begins and label == _split(labels[spans[-1][-1].best])[1]:
            spans[-1].append(piece)
        else:
            spans.append([piece])
    return [
        Span(
            label=labels[span[0].best].split("-", 1)[-1],
            score=float(np.mean([piece.probabilities.max() for piece in span])),
            text=text[span[0].start : span[-1].end],
            start=span[0].start,
            end=span[-1].end,
        )
        for span in spans
        if labels[span[0].best].split("-", 1)[-1] != OUTSIDE
    ]


def _tokens(tokenizer: Tokenizer, text: str, probabilities: NDArray[np.float64]) -> Iterator[_Piece]:
    """Yield the tokens of a text without special ones, and whether each continues the word before it.

    A tokenizer with a mark for that (WordPiece's ##) has longer tokens than the text has characters there. For others
    a token continues a word where no space is before it or at its start.
    """
    encoding = tokenizer.encoding(text)
    model: Any = tokenizer.backend.model
    marks, unknown = bool(getattr(model, "continuing_subword_prefix", None)), tokenizer.unknown_id
    for token, row in enumerate(probabilities):
        if encoding.special_tokens_mask[token]:
            continue
        start, end = encoding.offsets[token]
        if marks:
            continues = len(encoding.tokens[token]) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        yield _Piece(start, end, continues and encoding.ids[token] != unknown, row)


def _groups(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Return the tokens of each word."""
    words: list[list[_Piece]] = []
    for piece in pieces:
        if words and piece.continues:
            words[-1].append(piece)
        else:
            words.append([piece])
    return words


def _word(tokens: list[_Piece], aggregation: Aggregation) -> _Piece:
    """Return a word, with the probabilities by which it is labelled."""
    match aggregation:
        case "average":
            chosen = np.mean([token.probabilities for token in tokens], axis=0)
        case "max":
            chosen = max(tokens, key=lambda token: token.probabilities.max()).probabilities
        case _:
            chosen = tokens[0].probabilities
    return _Piece(tokens[0].start, tokens[-1].end, False, chosen)


def _split(label: str) -> tuple[bool, str]:
    """Return whether a label begins a span, and the label of the span."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label
