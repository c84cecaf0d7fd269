"""The prompt of a speech model (Whisper): start, language, task, no timestamps, as it was trained.

Source: arXiv 2212.04356, section 2.3. The ids are those of generation_config.json: `lang_to_id`, `task_to_id`,
`no_timestamps_token_id`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeformer.errors import RequestError

FRAMES_PER_SECOND = 100
"""Frames of a log-mel spectrogram; a position of the encoder is two of them."""


def window_seconds(positions: int) -> float:
    """Return how many seconds of sound an encoder with this many positions takes."""
    return 2 * positions / FRAMES_PER_SECOND


def speech_prompt(
    generation: Mapping[str, Any],
    start: Sequence[int],
    language: str | None,
    task: str,
    detect_language: Callable[[Sequence[int]], int],
) -> list[int]:
    """Return the decoder's first tokens.

    generation: of the manifest. start: the start token. language: a code (en, de…); None to call detect_language, which
    picks one of the language tokens that it gets. task: `transcribe`, or `translate` into English. Raises RequestError
    for a language or task that the model does not have.
    """
    no_timestamps = generation.get("no_timestamps_token_id")
    last = [] if no_timestamps is None else [no_timestamps]
    languages, tasks = generation.get("lang_to_id"), generation.get("task_to_id")
    if not languages or not tasks:
        if language not in (None, "en") or task != "transcribe":
            raise RequestError("this model transcribes English, and nothing else.")
        return [*start, *last]
    if task not in tasks:
        raise RequestError(f"task is {task!r}; it must be one of {', '.join(sorted(tasks))}.")
    if language is None:
        spoken = detect_language(list(languages.values()))
    elif f"<|{language}|>" in languages:
        spoken = languages[f"<|{language}|>"]
    else:
        known = ", ".join(sorted(name.strip("<|>") for name in languages))
        raise RequestError(f"this model has no language {language!r}; it has {known}.")
    return [*start, spoken, tasks[task], *last]
