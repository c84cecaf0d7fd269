"""Read questions with one right answer each: one JSON object per line, with skill, prompt and answer.

A question about a picture has the path of its file, too, beside that of the questions: `image`.

The presets come with held-out questions next to their weights.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from edgeformer.checkpoints.found_model import PRESETS, preset_names
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.media.pictures.picture_files import Picture

FILE_NAME = "evaluation.jsonl"
"""File of the held-out questions in the folder of a preset."""


@dataclass(frozen=True)
class Question:
    """A prompt as the model takes it, chat markers included, and its one right answer; skill: groups questions.

    image: the picture of the prompt's placeholder; None for a question without one.
    """

    skill: str
    prompt: str
    answer: str
    image: Picture | None = field(default=None, compare=False)

    def answered_by(self, text: str) -> bool:
        """Return whether a text is the answer, apart from white space around it, in which tokenizers differ."""
        return text.strip() == self.answer.strip()


def read_questions(path: str | Path) -> list[Question]:
    """Read a file of questions, in its order; other fields are ignored.

    Raises RequestError, naming the line, for a file that cannot be read.
    """
    names = ["skill", "prompt", "answer"]
    questions = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{path}, line {number} is not valid JSON: {error}") from None
        if not isinstance(data, dict):
            raise RequestError(f"{path}, line {number} must be a JSON object with {', '.join(names)}.")
        for name in names:
            if not isinstance(data.get(name), str) or not data[name].strip():
                raise RequestError(f"{path}, line {number}: {name} is {data.get(name)!r}; it must be a text.")
        image = data.get("image")
        if image is not None and not isinstance(image, str):
            raise RequestError(f"{path}, line {number}: image is {image!r}; it must be the path of a file.")
        beside = None if image is None else str(Path(path).parent / image)
        questions.append(Question(**{name: data[name] for name in names}, image=beside))
    if not questions:
        raise RequestError(f"{path} has no questions; each is a line of JSON with {', '.join(names)}.")
    return questions


def preset_questions(manifest: Manifest) -> Path:
    """Return the file of held-out questions of the preset that a bundle was exported from.

    Raises RequestError for a bundle of another source.
    """
    name = manifest.provenance.source.removeprefix("preset ")
    if name == manifest.provenance.source or name not in preset_names():
        raise RequestError(
            f"this bundle was exported from {manifest.provenance.source}, and only presets come with problems to "
            "score. Give your own with --problems FILE (a JSON object with skill, prompt and answer on each line), or "
            "measure the perplexity of a text with --text FILE."
        )
    path = PRESETS / name / FILE_NAME
    if not os.path.isfile(path):
        raise RequestError(f"the preset {name} has no {FILE_NAME}. Give problems with --problems FILE.")
    return path


def choose(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """Return at most `limit` questions of each skill, drawn at random, in their given order; None for all."""
    if limit is None:
        return list(questions)
    if limit < 1:
        raise RequestError(f"limit is {limit}; it must be at least 1.")
    chosen: set[int] = set()
    for skill in dict.fromkeys(each.skill for each in questions):
        own = [place for place, each in enumerate(questions) if each.skill == skill]
        chosen.update(Random(f"{seed}/{skill}").sample(own, min(limit, len(own))))
    return [questions[place] for place in sorted(chosen)]


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file, line ends unchanged. Raises RequestError if it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not a text in UTF-8: byte {error.start} is invalid.") from None
