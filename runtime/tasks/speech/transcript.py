"""The result of a transcription: its text, and its segments with their times."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word with its punctuation, and when it is spoken: start, end, in seconds from the start of the recording."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a recording in which something is said.

    Attributes:
        start, end: in seconds from the start of the recording, as the model wrote them; of a model that writes no
            times, those of its window.
        token_ids: of the text, with the times around it.
        temperature: at which they were drawn.
        avg_logprob: the mean log-probability of the tokens of its window, among those that the rules allow.
        compression_ratio: how much zlib shortens the token ids of its window.
        no_speech_prob: the probability that nothing is said in its window; None where the window's text was likely
            enough, or there is no no_speech_threshold.
        seek: the frame, of 10 ms, at which its window begins.
        words: with their times; None where they were not asked for.
        token_times: when each of the token_ids is spoken, in seconds from the start of the recording; None likewise.
    """

    start: float
    end: float
    text: str
    token_ids: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None
    seek: int
    words: list[Word] | None = None
    token_times: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The text of a recording, with its segments.

    text: of all segments. language: a code, given or detected; None for a model of one language. task: `transcribe` or
    `translate`. duration: of the recording, in seconds.
    """

    text: str
    language: str | None
    task: str
    duration: float
    segments: list[Segment]
