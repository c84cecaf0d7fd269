"""The options of a transcription, beside those of `GenerationConfig`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from edgeformer.errors import RequestError
from edgeformer.runtime import request_values


@dataclass(frozen=True, kw_only=True)
class SpeechConfig:
    """How a recording is transcribed. Names and meanings are those of transformers' `generate` of Whisper.

    Attributes:
        timestamps: whether the model writes the times of segments. By default it does for a recording that is longer
            than its window, which then moves to the end of the last whole segment; without times, windows follow one
            another.
        word_timestamps: whether words have times, too, by the model's alignment_heads. Then the model writes the times
            of segments, if it can, unless timestamps is False.
        prompt: a text that stands before the recording, as its names and its spelling would be written. A window that
            continues no text continues this one.
        prompt_condition_type: of the windows that do continue a text, it begins that of the first (`first-segment`) or
            of all (`all-segments`, which needs condition_on_prev_tokens).
        condition_on_prev_tokens: whether a window continues the text before it; a window that was drawn at a
            temperature of 0.5 or more is not continued.
        fallback_temperatures: temperatures at which a window is drawn again, in their order, after a text that repeats
            itself or is unlikely.
        compression_ratio_threshold: a text repeats itself whose token ids, as bytes, zlib shortens by more than this.
        logprob_threshold: a text is unlikely whose tokens' mean log-probability, among the tokens that the rules allow,
            is below this.
        no_speech_threshold: an unlikely text is dropped, and nothing drawn again, where the token of no speech has a
            probability above this after the start token; it needs logprob_threshold.

    None stands for what the model's generation_config.json sets, and else for none. Raises RequestError, naming the
    field, for a value outside its range.
    """

    timestamps: bool | None = None
    word_timestamps: bool = False
    prompt: str | None = None
    prompt_condition_type: Literal["first-segment", "all-segments"] = "first-segment"
    condition_on_prev_tokens: bool | None = None
    fallback_temperatures: Sequence[float] = ()
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("timestamps", "condition_on_prev_tokens"):
            if getattr(self, name) is not None:
                request_values.flag(name, getattr(self, name))
        request_values.flag("word_timestamps", self.word_timestamps)
        if self.prompt is not None:
            request_values.text("prompt", self.prompt)
        if self.prompt_condition_type not in (kinds := ("first-segment", "all-segments")):
            shown = request_values.shown(self.prompt_condition_type)
            raise RequestError(f"prompt_condition_type is {shown}; it must be one of {', '.join(kinds)}.")
        if not request_values.is_list(self.fallback_temperatures):
            shown = request_values.shown(self.fallback_temperatures)
            raise RequestError(f"fallback_temperatures is {shown}; it must be a list of numbers above 0.")
        numbers = tuple(request_values.number("fallback_temperatures", each) for each in self.fallback_temperatures)
        if not all(each > 0 for each in numbers):
            raise RequestError(f"fallback_temperatures is {list(numbers)}; each must be above 0.")
        object.__setattr__(self, "fallback_temperatures", numbers)
        for name in THRESHOLDS:
            if getattr(self, name) is None:
                continue
            value = request_values.number(name, getattr(self, name))
            if not math.isfinite(value):
                raise RequestError(f"{name} is {value}; it must be finite, or None.")
            object.__setattr__(self, name, value)

    def completed(self, generation: Mapping[str, Any]) -> Self:
        """Return this config with the values of a generation_config.json where it has None."""
        names = {field.name for field in fields(self)} - {
            "timestamps",
            "word_timestamps",
            "fallback_temperatures",
            "prompt",
            "prompt_condition_type",
        }
        found: dict[str, Any] = {name: generation.get(name) for name in names if getattr(self, name) is None}
        if self.timestamps is None and generation.get("return_timestamps"):
            found["timestamps"] = True
        config = replace(self, **found)
        if config.no_speech_threshold is not None and config.logprob_threshold is None:
            raise RequestError("no_speech_threshold says what happens to unlikely texts; it needs logprob_threshold.")
        if config.prompt_condition_type == "all-segments" and not config.condition_on_prev_tokens:
            raise RequestError("prompt_condition_type is 'all-segments', which needs condition_on_prev_tokens=True.")
        return config


THRESHOLDS = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
