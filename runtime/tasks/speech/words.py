"""Words of a text with their times, from what the alignment heads of a speech model read.

    weights [heads, S, T] → normalised, smoothed, averaged [S, T] → dynamic time warping → a position for each token
    tokens → pieces of whole characters → words, with their punctuation → the times of their first and last tokens

Source: arXiv 2212.04356, `_extract_token_timestamps` and `_combine_tokens_into_words` of Whisper in transformers 5.23,
whose times and words these are.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.tasks.speech.timestamps import SECONDS_PER_TIME
from edgeformer.runtime.tasks.speech.transcript import Word

WITHOUT_SPACES = ("ja", "lo", "my", "th", "yue", "zh")
"""Languages that are written without spaces, where every character is a word."""

BEFORE, BEHIND = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the next word, and to the last one."""

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
UNFINISHED = "\ufffd"
"""The character that a tokenizer writes for a part of one."""


def token_times(weights: NDArray[np.float32], width: int) -> list[float]:
    """Return when each token is spoken, in seconds from the start of the window.

    weights: of the alignment heads, [heads, S, T]. width: positions of the median filter, an odd number.
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # of one token: its weights have no deviation
        smooth = np.stack([_smoothed(each, width) for each in weights])
    costs: NDArray[np.float32] = -smooth.mean(axis=0)
    return [position * SECONDS_PER_TIME for position in _positions(costs.astype(np.float64)).tolist()]


def _smoothed(weights: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the weights [S, T] of one head, normalised over the tokens, and median-filtered over the positions."""
    mean = weights.mean(0, dtype=np.float64).astype(np.float32)
    normal: NDArray[np.float32] = (weights - mean) / weights.std(0, dtype=np.float64).astype(np.float32)
    middle = width // 2
    if normal.shape[1] <= middle:
        return normal
    mirrored = np.pad(normal, ((0, 0), (middle, middle)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(mirrored, width, axis=1)
    found: NDArray[np.float32] = np.sort(windows, axis=-1)[..., middle]
    return found


def _positions(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the first position of each row on the cheapest path through costs [S, T]: dynamic time warping.

    A step goes to the next row, the next position, or both. Sums are float32, and of equal ones the path stays in its
    row, as in transformers.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    trace = np.empty((rows + 1, columns + 1), np.int8)
    for diagonal in range(2, rows + columns + 1):  # of which no cell depends on another
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        step = np.where((both < row) & (both < column), 0, np.where((row < both) & (row < column), 1, 2))
        total[i, j] = costs[i - 1, j - 1] + np.choose(step, [both, row, column])
        trace[i, j] = step
    trace[0, :], trace[:, 0] = 2, 1
    first = np.zeros(rows, np.int64)
    at, position = rows, columns
    while at > 0:
        first[at - 1] = max(position - 1, 0)
        step = trace[at, position]
        at, position = at - (step != 2), position - (step != 1)
    return first


def words_of(
    decode: Callable[[list[int]], str],
    tokens: Sequence[int],
    times: Sequence[tuple[float, float]],
    language: str | None,
) -> list[Word]:
    """Return the words of tokens of text.

    decode: returns the text of tokens. times: start and end of each token, in seconds. language: a code; None for
    English.
    """
    pieces = _characters(decode, tokens)
    if language not in WITHOUT_SPACES:
        pieces = _between_spaces(pieces)
    words = []
    for text, places in _with_punctuation(pieces):
        start, end = times[places[0]][0], times[places[-1]][1]
        if text.strip():
            words.append(Word(text=text.strip(), start=round(start, 2), end=round(end, 2)))
    return words


_Piece = tuple[str, list[int]]
"""A text, and the places of its tokens."""


def _characters(decode: Callable[[list[int]], str], tokens: Sequence[int]) -> list[_Piece]:
    """Divide tokens where whole characters end."""
    whole, done = decode(list(tokens)), 0
    pieces: list[_Piece] = []
    places: list[int] = []
    for place in range(len(tokens)):
        places.append(place)
        text = decode([tokens[each] for each in places])
        cut = text.find(UNFINISHED)
        # A text may spell the character that stands for a part of one.
        if cut < 0 or done + cut >= len(whole) or whole[done + cut] == UNFINISHED:
            pieces.append((text, places))
            places, done = [], done + len(text)
    return pieces


def _between_spaces(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Join pieces up to the next one that begins with a space or is punctuation."""
    words: list[_Piece] = []
    for text, places in pieces:
        if not words or text.startswith(" ") or text.strip() in PUNCTUATION:
            words.append((text, places))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + places
    return words


def _with_punctuation(words: Sequence[_Piece]) -> list[_Piece]:
    """Join punctuation to the word that it belongs to."""
    joined: list[_Piece] = []
    for text, places in reversed(words):
        if joined and text.startswith(" ") and text.strip() in BEFORE:
            text, places = text + joined[-1][0], places + joined.pop()[1]
        joined.append((text, places))
    found: list[_Piece] = []
    for text, places in reversed(joined):
        if found and not found[-1][0].endswith(" ") and text in BEHIND:
            text, places = found[-1][0] + text, found.pop()[1] + places
        found.append((text, places))
    return found
