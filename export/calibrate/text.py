"""Read a calibration text: a file, or token ids.

A few thousand tokens of what the model is for are enough: they show which inputs of its layers are correlated.
"""

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import TowerTextConfig
from edgeformer.errors import ExportError, shown
from edgeformer.export.calibrate.picture_texts import PictureReading, SeenPicture
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.manifest.quantization import CalibrationText
from edgeformer.models.model_spec import ModelSpec
from edgeformer.options.export import Calibration
from edgeformer.runtime.text.tokenizer import Tokenizer

Tokens = NDArray[np.int64]
LENGTH = 256
"""Tokens in a piece of a file, or as many as the model's context has."""
PIECES = 32
"""Pieces that are taken from a file, evenly spread over it: 8,192 tokens in all. Three times as many had no effect on
tiny-llama (docs/how-to/calibrate.md)."""


@dataclass(frozen=True)
class CalibrationTokens:
    """Token ids int64 [n] of each text, and their source.

    pictures: of each text; nothing where no text has any. placeholder: the token that stands for each of their states.
    """

    texts: list[Tokens]
    source: CalibrationText
    pictures: Sequence[Sequence[SeenPicture]] = ()
    placeholder: int = -1


def read_calibration(
    given: Calibration,
    tokenizer_folder: Path | None,
    model_spec: ModelSpec,
    processor: PictureProcessor | None = None,
    placeholder: Placeholder | None = None,
) -> CalibrationTokens:
    """Return the token ids of a calibration text, or of texts with pictures (`picture_texts.py`).

    processor, placeholder: of a model that reads pictures.

    given: a UTF-8 file, of which up to PIECES pieces of LENGTH tokens are taken, each with the special tokens that the
    tokenizer puts around a text; or token ids, of which each text is cut to the context. Raises ExportError for a
    missing or empty text, a missing tokenizer, tokens outside the vocabulary, and speech models.
    """
    vocab_size, context_length = sizes_of(model_spec)
    if isinstance(given, str | Path) and (os.path.isdir(given) or Path(given).suffix == ".jsonl"):
        return _with_pictures(Path(given), tokenizer_folder, model_spec, processor, placeholder)
    if isinstance(given, str | Path):
        path = Path(given)
        if not os.path.isfile(path):
            raise ExportError(f"there is no file {path} to calibrate with. Give a file of text.")
        content, name = path.read_bytes(), path.name
        texts = _pieces(path, content, tokenizer_folder, context_length)
    else:
        texts = [_token_ids(text)[:context_length] for text in given]
        content, name = b"".join(text.tobytes() for text in texts), "token ids"
    texts = [text for text in texts if len(text)]
    if not texts:
        raise ExportError(f"{name} has no tokens to calibrate with.")
    lowest, highest = min(int(text.min()) for text in texts), max(int(text.max()) for text in texts)
    if lowest < 0 or highest >= vocab_size:
        raise ExportError(
            f"the tokens to calibrate with are {lowest} to {highest}, and the model has {vocab_size} tokens. "
            "Give the tokens of this model's own tokenizer."
        )
    count = sum(map(len, texts))
    return CalibrationTokens(
        texts, CalibrationText(name=name, tokens=count, sha256=hashlib.sha256(content).hexdigest())
    )


def _with_pictures(
    path: Path,
    tokenizer_folder: Path | None,
    model_spec: ModelSpec,
    processor: PictureProcessor | None,
    placeholder: Placeholder | None,
) -> CalibrationTokens:
    """Return the texts of a folder or of a file of JSON lines, with their pictures."""
    config, (_, context_length) = model_spec.config, sizes_of(model_spec)
    grid_input = config.tower.grid_input if isinstance(config, TowerTextConfig) else None
    tokenizer = _tokenizer(path, tokenizer_folder)
    texts, digest = PictureReading(processor, placeholder, grid_input, tokenizer, context_length).read(path)
    tokens, pictures = [each.tokens for each in texts], [each.pictures for each in texts]
    source = CalibrationText(
        name=path.name, tokens=sum(map(len, tokens)), sha256=digest, pictures=sum(map(len, pictures))
    )
    token = -1 if placeholder is None else placeholder.token
    return CalibrationTokens(tokens, source, pictures if source.pictures else (), token)


def _token_ids(text: Any) -> Tokens:
    """Return the token ids of a text, int64 [n]."""
    ids = np.asarray(text, None if len(text) else np.int64) if isinstance(text, Collection) else np.asarray(None)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ExportError(f"a text to calibrate with is {shown(text)}; it must be a list of token ids.")
    return ids.astype(np.int64)


def sizes_of(model_spec: ModelSpec) -> tuple[int, int]:
    """Return the vocabulary size and the context length that all parts of a model have in common."""
    if model_spec.config is None or isinstance(model_spec.config, TowerTextConfig):  # whose tower reads no tokens
        return model_spec.vocab_size, model_spec.context_length
    if model_spec.config.is_speech:
        raise ExportError("the model reads recordings, and calibration is by text. Leave calibration out.")
    if model_spec.config.sees_pictures:
        raise ExportError("the model reads pictures, and calibration is by text. Leave calibration out.")
    stacks = model_spec.config.stacks.values()
    return min(stack.vocab_size for stack in stacks), min(stack.context_length for stack in stacks)


def _tokenizer(path: Path, folder: Path | None) -> Tokenizer:
    if folder is None or not (folder / "tokenizer.json").is_file():
        raise ExportError(
            f"{path} cannot be read to calibrate with: the model has no tokenizer.json. Put the one that it was "
            "trained with into its folder, or give token ids (calibration=[[…], …] of export_model)."
        )
    return Tokenizer(folder)


def _pieces(path: Path, content: bytes, tokenizer_folder: Path | None, context_length: int) -> list[Tokens]:
    """Return pieces of a file of equal length, or one shorter piece."""
    tokenizer = _tokenizer(path, tokenizer_folder)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ExportError(f"{path} is not text in UTF-8, and cannot be calibrated with.") from None
    plain, whole = tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(text)
    around = len(whole) - len(plain)
    start = next(place for place in range(around + 1) if whole[place : place + len(plain)] == plain)
    before, after = whole[:start], whole[start + len(plain) :]
    room = max(1, min(LENGTH, context_length) - around)
    count = max(1, len(plain) // room)
    taken = np.unique(np.linspace(0, count - 1, min(count, PIECES)).astype(int))
    pieces = [plain[place * room : (place + 1) * room] for place in taken]
    return [np.array([*before, *piece, *after], np.int64) for piece in pieces if piece]
