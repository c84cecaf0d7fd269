"""The rules by which Whisper writes times, and how its tokens are divided at them.

A time is a token: those behind `no_timestamps_token_id` stand for 0.00, 0.02, … seconds in the window. A segment is
written as its start, its text and its end, and the next one starts with a time again:

    <|0.00|> Good morning.<|1.40|><|1.80|> Who is there?<|2.60|>
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SECONDS_PER_TIME = 0.02
"""Seconds between one time and the next. Source: arXiv 2212.04356, section 2.3."""

FRAMES_PER_TIME = 2
"""Frames of a spectrogram between one time and the next."""


class TimestampRules:
    """A logits processor that lets times come only where they make sense. Source: arXiv 2212.04356, section 2.3.

    The first token is a time, of at most `latest_first` steps if that is given. Times come in pairs, but for the first
    one and the last one before the end; they never decrease, and a segment is not empty. Where all times together are
    likelier than any other token, a time comes.

    first_time: the token of 0.00. end: the end token; tokens of text have smaller ids. prompt_length: tokens before the
    first new one.
    """

    def __init__(self, first_time: int, end: int, prompt_length: int, latest_first: int | None = None):
        self._first_time = first_time
        self._end = end
        self._prompt_length = prompt_length
        self._latest_first = latest_first

    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits [V] in which tokens that may not come are -inf."""
        first = self._first_time
        new = token_ids[self._prompt_length :]
        logits[first - 1] = -np.inf  # the token that turns times off
        if len(new) == 0:
            logits[:first] = -np.inf
            if self._latest_first is not None:
                logits[first + self._latest_first + 1 :] = -np.inf
            return logits
        after_time = new[-1] >= first
        after_two = after_time and (len(new) == 1 or new[-2] >= first)
        if after_two:  # the segment has begun
            logits[first:] = -np.inf
        elif after_time:  # the segment has ended
            logits[: self._end] = -np.inf
        times = new[new >= first]
        if len(times):
            begins = after_time and not after_two  # a segment may begin where the last one ended
            logits[first : times[-1] + (0 if begins else 1)] = -np.inf
        likeliest = logits[first:].max()
        if likeliest > -np.inf:
            together = likeliest + np.log(np.exp(logits[first:].astype(np.float64) - likeliest).sum())
            if together > logits[:first].max():
                logits[:first] = -np.inf
        return logits


class Piece(NamedTuple):
    """A segment of a window. start, end: in steps of SECONDS_PER_TIME. tokens: with the times around them."""

    start: int
    end: int
    tokens: list[int]


def divide(tokens: Sequence[int], first_time: int, frames: int) -> tuple[list[Piece], int]:
    """Divide the tokens of a window, without its end token, at pairs of times; return how far the window moves, too.

    frames: of the window, its padding left out; so far it moves at most where no segment is cut by its end. Source:
    `_retrieve_segment` of transformers' Whisper.
    """
    tokens = list(tokens)
    is_time = [token >= first_time for token in tokens]
    ends_with_one = is_time[-2:] == [False, True]
    ends = [place + 1 for place in range(len(tokens) - 1) if is_time[place] and is_time[place + 1]]
    if not ends:
        times = [token for token in tokens if token >= first_time]
        said = bool(times) and times[-1] != first_time
        return [Piece(0, times[-1] - first_time if said else frames // FRAMES_PER_TIME, tokens)], frames
    if ends_with_one:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # the time at which the cut segment begins stays, to say that it was cut
    pieces = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        part = tokens[start:end]
        last = part[-1] if ends_with_one or end != ends[-1] else part[-2]
        pieces.append(Piece(part[0] - first_time, last - first_time, part))
    if ends_with_one:  # nothing is said behind the last time
        return pieces, frames
    return pieces, (tokens[ends[-1] - 2] - first_time) * FRAMES_PER_TIME
