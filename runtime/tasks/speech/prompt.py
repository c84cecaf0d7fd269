"""The prompt of a speech model (Whisper): start, language, task, and whether it writes times, as it was trained.

Source: arXiv 2212.04356, section 2.3. The ids are those of generation_config.json: `lang_to_id`, `task_to_id`,
`no_timestamps_token_id`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgeformer.errors import RequestError

FRAMES_PER_SECOND = 100
"""Frames of a log-mel spectrogram; a position of the encoder is two of them."""


def window_seconds(positions: int) -> float:
    """Return how many seconds of sound an encoder with this many positions takes."""
    return 2 * positions / FRAMES_PER_SECOND


def needs_language(generation: Mapping[str, Any], language: str | None, task: str) -> bool:
    """Return whether the language must be detected first. Raises RequestError as `speech_prompt`."""
    languages, tasks = generation.get("lang_to_id"), generation.get("task_to_id")
    if not languages or not tasks:
        if language not in (None, "en") or task != "transcribe":
            raise RequestError("this model transcribes English, and nothing else.")
        return False
    if task not in tasks:
        raise RequestError(f"task is {task!r}; it must be one of {', '.join(sorted(tasks))}.")
    if language is not None and f"<|{language}|>" not in languages:
        known = ", ".join(sorted(name.strip("<|>") for name in languages))
        raise RequestError(f"this model has no language {language!r}; it has {known}.")
    return language is None


def speech_prompt(
    generation: Mapping[str, Any], start: Sequence[int], language: str | None, task: str, timestamps: bool = False
) -> list[int]:
    """Return the decoder's first tokens.

    Args:
        generation: of the manifest.
        start: the start token.
        language: a code (en, de…); None for a model of English alone.
        task: `transcribe`, or `translate` into English.
        timestamps: whether the model is to write times.

    Raises RequestError for a language or task that the model does not have.
    """
    assert not needs_language(generation, language, task), "the language of a model of many is given or detected"
    silent = generation.get("no_timestamps_token_id")
    last = [] if timestamps or silent is None else [silent]
    languages, tasks = generation.get("lang_to_id"), generation.get("task_to_id")
    if not languages or not tasks:
        return [*start, *last]
    return [*start, languages[f"<|{language}|>"], tasks[task], *last]
