"""Transcribe a recording of any length: which runs of a speech model it takes, one after the other.

    runs = transcribe(model, samples, ...)      # a generator of `Window`s, which is sent the `Generation` of each
    start, prompt, decode until the text is likely enough, divide at times, move to the end of the last whole segment

Nothing here runs a model, so that `Seq2SeqLM` and the server share it. Source: arXiv 2212.04356, section 4.5, and
`WhisperForConditionalGeneration.generate` of transformers 5.23, whose tokens and times these are.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.graph_forms import AlignmentGraph
from edgeformer.runtime.generation.generation_config import GenerationConfig
from edgeformer.runtime.generation.row import Generation
from edgeformer.runtime.generation.sampling.logits_processors import LogitsProcessor
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE, Spectrogram
from edgeformer.runtime.tasks.speech.config import SpeechConfig
from edgeformer.runtime.tasks.speech.likelihood import LastLogits, Likelihood, compression_ratio
from edgeformer.runtime.tasks.speech.prompt import FRAMES_PER_SECOND, needs_language, speech_prompt
from edgeformer.runtime.tasks.speech.recording import Recording
from edgeformer.runtime.tasks.speech.timestamps import FRAMES_PER_TIME, SECONDS_PER_TIME, Piece, TimestampRules, divide
from edgeformer.runtime.tasks.speech.transcript import Segment, Transcript
from edgeformer.runtime.tasks.speech.words import token_times, words_of
from edgeformer.runtime.text.tokenizer import Tokenizer

CONTINUED_BELOW = 0.5
"""Temperature from which on a window's text is too uncertain for the next one to continue. Source: as above."""


class Window(NamedTuple):
    """A run of the model that a transcription needs: `generate` takes these."""

    source: Spectrogram
    prompt: list[int]
    config: GenerationConfig
    processors: Sequence[LogitsProcessor]


Runs = Generator[Window, Generation, Transcript]


@dataclass(frozen=True, kw_only=True)
class SpeechModel:
    """The facts of a model that a transcription needs.

    Attributes:
        generation: of the manifest.
        start: the start token.
        end: the end token.
        seconds: of a window.
        alignment: of the manifest.
        align: runs the alignment graph on a window and a text, whose weights [heads, S, positions] it returns.
    """

    tokenizer: Tokenizer
    generation: Mapping[str, Any]
    start: list[int]
    end: int
    vocab_size: int
    context_length: int
    mel_bins: int
    seconds: int
    alignment: AlignmentGraph | None
    align: Callable[[Spectrogram, list[int]], NDArray[np.float32]]

    @cached_property
    def first_time(self) -> int | None:
        """The token of the time 0.00; None if the model has no tokens of times."""
        silent = self.generation.get("no_timestamps_token_id")
        return None if silent is None or silent + 1 >= self.vocab_size else silent + 1

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without the times between them."""
        first = self.vocab_size if self.first_time is None else self.first_time
        return self.tokenizer.decode([token for token in tokens if token < first]).strip()

    def require_alignment(self) -> AlignmentGraph:
        """Return the alignment graph. Raises RequestError for a model or a bundle without one."""
        if self.alignment is not None:
            return self.alignment
        if not self.generation.get("alignment_heads"):
            raise RequestError("this model has no times of words: its generation_config.json has no alignment_heads.")
        raise RequestError(
            "this bundle has no alignment graph, which gives the times of words. Export the model again, for another "
            "deployment than mobile."
        )


def transcribe(
    model: SpeechModel,
    samples: Any,
    language: str | None,
    task: str,
    speech: SpeechConfig,
    config: GenerationConfig,
    processors: Sequence[LogitsProcessor] = (),
) -> Runs:
    """Yield the runs of the model that a recording needs, be sent the result of each, and return the transcript.

    samples: [N] at 16 kHz. language: a code, or None for the one that the model detects in the first window. task:
    `transcribe`, or `translate` into English. Raises RequestError for what the model does not have.
    """
    speech = speech.completed(model.generation)
    needs_language(model.generation, language, task)  # refuses before anything runs
    if speech.word_timestamps:
        model.require_alignment()
    timestamps = _writes_times(model, len(samples), speech)
    if timestamps and config.stop:
        raise RequestError("stop texts do not work with times of segments; use timestamps=False.")
    recording = Recording(samples, model.mel_bins, model.seconds, whole=timestamps)
    if needs_language(model.generation, language, task):
        language = yield from _hear(model, recording)
    first = speech_prompt(model.generation, model.start, language, task, timestamps)
    spoken = language or ("en" if task == "transcribe" else None)
    written = spoken if task == "transcribe" else None
    job = _Job(model, recording, first, speech, config, processors, timestamps, written)
    segments = yield from job.run()
    if timestamps:
        text = model.text_of([token for segment in segments for token in segment.token_ids])
    else:
        text = " ".join(segment.text for segment in segments if segment.text)
    said = [segment for segment in segments if segment.text]
    return Transcript(
        text=text, language=spoken, task=task, duration=recording.samples / SAMPLE_RATE, segments=said
    )  # fmt: skip


def _writes_times(model: SpeechModel, samples: int, speech: SpeechConfig) -> bool:
    """Return whether the model is to write times. Raises RequestError if it cannot and is asked to."""
    if speech.timestamps is None:
        long = samples > model.seconds * SAMPLE_RATE
        return model.first_time is not None and (long or speech.word_timestamps)
    if speech.timestamps and model.first_time is None:
        raise RequestError("this model writes no times: its generation_config.json names no tokens of times.")
    return speech.timestamps


def _hear(model: SpeechModel, recording: Recording) -> Generator[Window, Generation, str]:
    """Return the code of the language that is spoken in the first window."""
    last = LastLogits()
    # A config of its own, because the model's suppresses these tokens.
    yield Window(recording.window(0), model.start, GenerationConfig(max_new_tokens=1), [last])
    languages: Mapping[str, int] = model.generation["lang_to_id"]
    return max(languages, key=lambda name: last.logits[languages[name]]).strip("<|>")


class _Attempt(NamedTuple):
    """The text of a window. tokens: without the end token. ended: whether there was one. repeats, unlikely: by the
    thresholds.
    """

    tokens: list[int]
    ended: bool
    text: str | None
    temperature: float
    avg_logprob: float
    compression_ratio: float
    repeats: bool
    unlikely: bool


class _Job:
    """A transcription whose options are known.

    first: the prompt of a window that continues none. language: that the text is written in; None for English.
    """

    def __init__(
        self,
        model: SpeechModel,
        recording: Recording,
        first: list[int],
        speech: SpeechConfig,
        config: GenerationConfig,
        processors: Sequence[LogitsProcessor],
        timestamps: bool,
        language: str | None,
    ):
        self._model, self._recording, self._first, self._speech = model, recording, first, speech
        self._config, self._processors, self._timestamps = config, processors, timestamps
        self._language = language
        self._prompt = [] if speech.prompt is None else self._tokens_of(speech.prompt)

    def run(self) -> Generator[Window, Generation, list[Segment]]:
        """Return the segments of all windows, those without a text included."""
        recording, segments, frame = self._recording, list[Segment](), 0
        continues = bool(self._speech.condition_on_prev_tokens)
        while frame < recording.frames:
            frames = min(recording.frames - frame, recording.window_frames)
            source = recording.window(frame)
            prompt = [*(self._before(segments) if continues else self._prompt), *self._first]
            attempt, no_speech = yield from self._decode(source, prompt)
            continues = bool(self._speech.condition_on_prev_tokens) and attempt.temperature < CONTINUED_BELOW
            threshold = self._speech.no_speech_threshold
            if threshold is not None and no_speech is not None and no_speech > threshold:
                frame += frames
                continue
            pieces, moved = self._divided(attempt.tokens, frames)
            said = [self._segment(piece, frame, attempt, no_speech) for piece in pieces]
            segments += self._with_words(said, source, prompt, attempt) if self._speech.word_timestamps else said
            frame += moved or frames
        return segments

    def _divided(self, tokens: list[int], frames: int) -> tuple[list[Piece], int]:
        if not self._timestamps or self._model.first_time is None:
            return [Piece(0, frames // FRAMES_PER_TIME, tokens)], frames
        return divide(tokens, self._model.first_time, frames)

    def _segment(self, piece: Piece, frame: int, attempt: _Attempt, no_speech: float | None) -> Segment:
        seconds = frame / FRAMES_PER_SECOND
        text = self._model.text_of(piece.tokens) if self._timestamps else (attempt.text or "").strip()
        end = seconds + piece.end * SECONDS_PER_TIME
        return Segment(
            start=seconds + piece.start * SECONDS_PER_TIME,
            end=end if self._timestamps else min(end, self._recording.samples / SAMPLE_RATE),
            text=text,
            token_ids=piece.tokens,
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=no_speech,
            seek=frame,
        )

    def _with_words(
        self, segments: Sequence[Segment], source: Spectrogram, prompt: list[int], attempt: _Attempt
    ) -> list[Segment]:
        """Return the segments of a window with the times of their words."""
        start = segments[0].seek / FRAMES_PER_SECOND
        # The last token of all is not read again; it has the time of the one before it.
        read = attempt.tokens if attempt.ended else attempt.tokens[:-1]
        times = [0.0] * (len(attempt.tokens) - len(read))
        if read:
            positions = max((self._recording.sounding - segments[0].seek) // FRAMES_PER_TIME, 1)
            weights = self._model.align(source, [*prompt, *read])[:, len(prompt) :, :positions]
            found = token_times(weights, self._model.require_alignment().median_filter_width)
            times = found + found[-1:] * len(times)
        ends = [start + each for each in times]
        starts = [start, *ends[:-1]]
        timed, first = list[Segment](), 0
        for segment in segments:
            tokens = segment.token_ids
            text = [place for place, token in enumerate(tokens) if token < self._model.end]
            spans = [(starts[first + place], ends[first + place]) for place in text]
            words = words_of(self._model.tokenizer.decode, [tokens[place] for place in text], spans, self._language)
            timed.append(replace(segment, words=words, token_times=ends[first : first + len(tokens)]))
            first += len(tokens)
        return timed

    def _before(self, segments: Sequence[Segment]) -> list[int]:
        """Return the prompt of what was said before: the last tokens behind their start token; empty for nothing."""
        every = self._speech.prompt_condition_type == "all-segments"
        if not segments and (every or not self._prompt):
            return self._prompt
        said: list[int] = [] if every else self._prompt[1:]
        first_time = self._model.first_time
        for segment in segments:
            tokens = segment.token_ids
            cut = first_time is not None and len(tokens) > 2 and tokens[-2] >= first_time
            said = said + (tokens[:-1] if cut else tokens)  # the second of two times begins what was cut off
        start = self._start_of_previous()
        head = self._prompt if every and self._prompt else [] if start is None else [start]
        return [*head, *said[-self._longest :]]

    @property
    def _longest(self) -> int:
        """Tokens at most of a text that is continued, without its start token."""
        return self._model.context_length // 2 - 1

    def _start_of_previous(self) -> int | None:
        """Return the token before a text that is continued; None if the model has none."""
        start: int | None = self._model.generation.get("prev_sot_token_id")
        if start is None and len(self._config.suppress_tokens) >= 2:
            start = self._config.suppress_tokens[-2]
        return start

    def _tokens_of(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt's text, behind their start token."""
        start = self._start_of_previous()
        if start is None:
            raise RequestError("this model continues no text: its generation_config.json has no prev_sot_token_id.")
        tokens = self._model.tokenizer.encode(" " + prompt.strip(), add_special_tokens=False)
        if any(token >= self._model.end for token in tokens):
            raise RequestError("the prompt spells a special token; it must be text.")
        if len(tokens) > self._longest:
            raise RequestError(f"the prompt has {len(tokens)} tokens, and the model takes {self._longest}. Shorten it.")
        return [start, *tokens]

    def _decode(
        self, source: Spectrogram, prompt: list[int]
    ) -> Generator[Window, Generation, tuple[_Attempt, float | None]]:
        """Draw a window's text until it is likely enough; return it, and the probability that nothing is said."""
        no_speech: float | None = None
        for temperature in (self._config.temperature, *self._speech.fallback_temperatures):
            attempt = yield from self._attempt(source, prompt, temperature)
            if attempt.unlikely and self._speech.no_speech_threshold is not None:
                if no_speech is None:
                    no_speech = yield from self._silence(source, prompt)
                if no_speech > self._speech.no_speech_threshold:
                    return attempt, no_speech
            if not (attempt.unlikely or attempt.repeats):
                break
        return attempt, no_speech if attempt.unlikely else None

    def _attempt(
        self, source: Spectrogram, prompt: list[int], temperature: float
    ) -> Generator[Window, Generation, _Attempt]:
        likelihood = Likelihood()
        processors: list[LogitsProcessor] = [*self._processors, likelihood]
        if self._timestamps and self._model.first_time is not None:
            latest = self._model.generation.get("max_initial_timestamp_index")
            rules = TimestampRules(self._model.first_time, self._model.end, len(prompt), latest)
            processors.insert(0, rules)
        beams = 1 if temperature else self._config.num_beams  # beams search, and a temperature draws
        config = self._limited(replace(self._config, temperature=temperature, num_beams=beams), len(prompt))
        result = yield Window(source, prompt, config, processors)
        tokens = result.token_ids
        logprob = likelihood.mean(tokens) if result.score is None else result.score
        ratio = compression_ratio(tokens, self._model.vocab_size)
        speech = self._speech
        return _Attempt(
            tokens[:-1] if result.finish_reason == "eos" else tokens,
            result.finish_reason == "eos",
            result.text,
            temperature,
            logprob,
            ratio,
            repeats=speech.compression_ratio_threshold is not None and ratio > speech.compression_ratio_threshold,
            unlikely=speech.logprob_threshold is not None and logprob < speech.logprob_threshold,
        )

    def _silence(self, source: Spectrogram, prompt: list[int]) -> Generator[Window, Generation, float]:
        """Return the probability of the token of no speech after the start token."""
        last = LastLogits()
        started = prompt[: len(prompt) - len(self._first) + 1]
        yield Window(source, started, GenerationConfig(max_new_tokens=1), [last])
        exact = np.exp(last.logits.astype(np.float64) - last.logits.max())
        return float(exact[self._model.generation["no_timestamps_token_id"] - 1] / exact.sum())

    def _limited(self, config: GenerationConfig, prompt: int) -> GenerationConfig:
        """Return a config in which max_length does not count the prompt, as in transformers' Whisper."""
        if config.max_new_tokens is not None or config.max_length is None:
            return config
        context = self._model.context_length
        length = min(config.max_length + min(context // 2 - 1, prompt), context)
        return replace(config, max_new_tokens=max(length - prompt, 1))
