"""Read texts to calibrate with, with pictures or without: a folder, or a file of JSON lines.

    folder/cat.jpg, folder/cat.txt         a picture, and the text behind it
    {"image": "cat.jpg", "prompt": "…"}    a row of a file; in a folder's metadata.jsonl file_name is the picture, too

A text becomes the message of a user where the tokenizer has a chat template, with its pictures in front of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import ExportError, RequestError, shown
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.placeholders import expand
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Packing, Processor
from edgeformer.runtime.steps.picture_tower import Run
from edgeformer.runtime.tasks.vision.picture_prompts import runs_of
from edgeformer.runtime.text.tokenizer import Tokenizer

TOKENS = 8192
"""Tokens that are taken, those of pictures included, as many as of a text (`text.py`)."""
SPREAD = (5**0.5 - 1) / 2
"""The golden ratio: multiples of it, without their whole parts, are spread evenly wherever they end."""
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
"""Suffixes of pictures in a folder."""
ROWS = "metadata.jsonl"
"""The file of a folder that has its rows, as data sets of Hugging Face have it."""


@dataclass(frozen=True)
class SeenPicture:
    """A picture of a text, as a tower reads it.

    Attributes:
        runs: the inputs of each run of the tower.
        grid: its rows and columns, of tiles or of squares.
        packing: how the states of all runs are put together; None where they stand in order.
    """

    runs: Sequence[Run]
    grid: tuple[int, ...]
    packing: Packing | None


@dataclass(frozen=True)
class SeenText:
    """A text with pictures. tokens: int64 [n], with the placeholder for each state of a picture."""

    tokens: NDArray[np.int64]
    pictures: Sequence[SeenPicture]


@dataclass(frozen=True)
class PictureReading:
    """Reads texts with pictures, by a bundle's processor, placeholder and tokenizer.

    processor, placeholder: None for a model that reads no pictures. grid_input: of its tower.
    """

    processor: PictureProcessor | None
    placeholder: Placeholder | None
    grid_input: str | None
    tokenizer: Tokenizer
    context_length: int

    def read(self, path: Path) -> tuple[list[SeenText], str]:
        """Return texts with pictures, spread evenly over all, of about TOKENS tokens, and the SHA-256 of what was read.

        Raises ExportError that names the row which cannot be read.
        """
        rows, digest, taken, count = list(_rows(path)), hashlib.sha256(), list[SeenText](), 0
        if not rows:
            raise ExportError(f"{path} has neither pictures ({', '.join(PICTURES)}) nor {ROWS} to calibrate with.")
        processor = None if self.processor is None else new_processor(self.processor)
        for place in np.argsort(np.arange(len(rows)) * SPREAD % 1, kind="stable"):
            name, row = rows[place]
            files = [path.parent / each if path.is_file() else path / each for each in _pictures(row, name)]
            try:
                contents = [file.read_bytes() for file in files]
                text = self._seen(processor, row, contents, [f"{name}: {file.name}" for file in files])
            except OSError as error:
                raise ExportError(f"{name}: {error.filename} cannot be read to calibrate with.") from None
            except RequestError as error:
                raise ExportError(f"{name} cannot be read to calibrate with: {error}") from None
            if len(text.tokens) > self.context_length:
                raise ExportError(
                    f"{name} has {len(text.tokens):,} tokens, and the model reads {self.context_length:,}. Shorten it."
                )
            if taken and count + len(text.tokens) > TOKENS:
                break
            taken.append(text)
            count += len(text.tokens)
            for each in (json.dumps(row, sort_keys=True).encode(), *contents):
                digest.update(hashlib.sha256(each).digest())
        return taken, digest.hexdigest()

    def _seen(
        self, processor: Processor | None, row: Mapping[str, Any], contents: Sequence[bytes], names: Sequence[str]
    ) -> SeenText:
        if processor is None and contents:
            raise RequestError("it has a picture, and this model reads none. Give a file of text.")
        tokens, seen = self._tokens(row, len(contents)), list[SeenPicture]()
        if processor is None or self.placeholder is None:
            return SeenText(np.array(tokens, np.int64), seen)
        processor = processor.among(len(contents))
        for content, name in zip(contents, names, strict=True):
            pixels = processor.read(content, name)
            size = pixels.shape[0], pixels.shape[1]
            runs = runs_of(processor, pixels, name, self.grid_input)
            seen.append(SeenPicture(runs, processor.grid(*size), processor.packing(*size)))
        shown_tokens = expand(tokens, self.placeholder, [each.grid for each in seen])
        return SeenText(np.array(shown_tokens, np.int64), seen)

    def _tokens(self, row: Mapping[str, Any], pictures: int) -> list[int]:
        """Return the tokens of a row, with a placeholder for each picture."""
        tokenizer, text, answer = self.tokenizer, str(row.get("prompt", row.get("text", ""))), row.get("answer")
        if tokenizer.chat_template is None:
            if "messages" in row:
                raise RequestError("it has messages, and the tokenizer has no chat template.")
            token = None if self.placeholder is None else tokenizer.backend.id_to_token(self.placeholder.token)
            spelled = (token or "") * pictures
            bare = self.placeholder is not None and self.placeholder.bare and pictures > 0
            return tokenizer.encode(f"{spelled}{text}{answer or ''}", add_special_tokens=not bare)
        messages = row.get("messages")
        if messages is None:
            parts: list[dict[str, str]] = [{"type": "image"}] * pictures
            parts += [{"type": "text", "text": text}] if text else []
            messages = [{"role": "user", "content": parts if pictures else text}]
            messages += [] if answer is None else [{"role": "assistant", "content": str(answer)}]
        ends = messages[-1].get("role") == "assistant"
        return tokenizer.encode_chat(messages, add_generation_prompt=not ends)


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file or a folder, each with its name in errors."""
    if path.is_file():
        yield from _rows_of_file(path)
    elif (path / ROWS).is_file():
        yield from _rows_of_file(path / ROWS)
    else:
        for file in sorted(path.iterdir()):
            if file.suffix.lower() in PICTURES:
                text = file.with_suffix(".txt")
                prompt = text.read_text(encoding="utf-8").strip() if text.is_file() else ""
                yield file.name, {"image": file.name, "prompt": prompt}


def _rows_of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file of JSON lines."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not row.keys() & {"prompt", "text", "messages", "image", "images", "file_name"}:
            reason = "is no JSON object with prompt (or text, messages) and image (or images, file_name)"
            raise ExportError(f"line {number} of {path} {reason}.")
        yield f"line {number} of {path.name}", row


def _pictures(row: Mapping[str, Any], name: str) -> list[str]:
    """Return the paths of the pictures of a row, beside the file or in the folder."""
    given: Any = next((row[each] for each in ("images", "image", "file_name") if row.get(each) is not None), [])
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
        raise ExportError(f"{name} has the pictures {shown(given)}; they must be a path, or a list of paths.")
    return paths
