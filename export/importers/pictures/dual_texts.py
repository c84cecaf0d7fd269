"""Read what a dual encoder makes of texts: its padding token, its similarity; and compare token ids with transformers.

The graphs are verified from token ids on, so that a wrong padding token or side would pass every check. transformers'
`from_pretrained` is the other reader of the tokenizer.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from edgeformer.checkpoints.source import ModelSource
from edgeformer.config import DualEncoderConfig
from edgeformer.errors import ConfigError, ExportError, shown
from edgeformer.manifest.parts import Similarity, SpecialTokens
from edgeformer.runtime.tasks.vision.text_rows import text_rows
from edgeformer.runtime.text.tokenizer import CONFIG, Tokenizer

TEXTS = (
    "a photo of a cat", "A Photo of TWO dogs, at the sea!", "", "naïve café, 漢字, 🙂", "two  spaces and 1,234 words.",
    "a very long text " * 60,
)  # fmt: skip
"""Texts that tokenizers part ways at: capitals, marks, letters beyond ASCII, spaces, no text, too long a text."""


class OpenedDual(NamedTuple):
    """The padding token among the special ones, the similarity, and warnings of a dual encoder."""

    tokens: SpecialTokens
    similarity: Similarity
    warnings: tuple[str, ...]


def open_dual(source: ModelSource, weights: Mapping[str, Tensor], folder: Path | None, *, compares: bool) -> OpenedDual:
    """Return what a dual encoder has beside its weights. folder: of its tokenizer.

    compares: whether token ids are compared with those of transformers. Raises ConfigError and ExportError as the
    functions below.
    """
    config = cast(DualEncoderConfig, source.config)
    tokens = with_padding_token(source.special_tokens(), config, folder)
    warnings = compare_texts(source.folder, folder, config, tokens) if compares else ()
    return OpenedDual(tokens, read_similarity(weights, config), warnings)


def with_padding_token(tokens: SpecialTokens, config: DualEncoderConfig, folder: Path | None) -> SpecialTokens:
    """Return special tokens with the padding token of the tokenizer, which config.json often has wrong.

    folder: of the tokenizer. Raises ConfigError for a model that reads its padding, and a tokenizer that names none.
    """
    if folder is None or not (folder / "tokenizer.json").is_file():
        return tokens
    tokenizer = Tokenizer(folder)
    name = tokenizer.special_token("pad_token")
    padding = None if name is None else tokenizer.backend.token_to_id(name)
    if padding is None:
        if config.padded:
            raise ConfigError(
                f"the model reads the padding behind a text, and {CONFIG} names no pad_token that its tokenizer has. "
                "Put the files of the tokenizer that it was trained with beside its config.json."
            )
        padding = config.text.end_token  # which ends a text: nothing behind it counts
    return replace(tokens, pad=padding)


def read_similarity(weights: Mapping[str, Tensor], config: DualEncoderConfig) -> Similarity:
    """Return the learned numbers of a dual encoder's similarity, by edgeformer's names of its parameters."""
    bias = float(weights["similarity.bias"]) if config.biased else 0.0
    return Similarity(scale=math.exp(float(weights["similarity.scale"])), bias=bias)


def compare_texts(
    checkpoint: Path, folder: Path | None, config: DualEncoderConfig, tokens: SpecialTokens
) -> tuple[str, ...]:
    """Return why nothing was compared, as a warning; nothing where the token ids are those of transformers.

    folder: of the tokenizer that the bundle gets. Raises ExportError where token ids differ.
    """
    from transformers import AutoTokenizer

    if folder is None or not (folder / "tokenizer.json").is_file():
        return ()
    try:
        theirs = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        padding = "max_length" if config.padded else "longest"
        expected = theirs(list(TEXTS), padding=padding, max_length=config.context_length, truncation=True)["input_ids"]
    except Exception as error:  # of any class: what a tokenizer lacks shows anywhere in its constructor
        reason = shown(str(error), 200)
        return (f"transformers cannot read the tokenizer, so its token ids were not compared: {reason}.",)
    ours = text_rows(Tokenizer(folder), TEXTS, config, tokens.pad or 0)
    for text, mine, other in zip(TEXTS, ours.tolist(), expected, strict=True):
        if not config.padded:  # what is behind the end does not count
            mine, other = mine[: len(_counted(mine, config))], other[: len(_counted(other, config))]
        if mine != list(other):
            places = [place for place, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]]
            first = places[0] if places else min(len(mine), len(other))
            raise ExportError(
                f"edgeformer does not make of the text {shown(text, 60)} the token ids that {type(theirs).__name__} of "
                f"transformers makes of it by the same files: from token {first} on, {shown(mine[first:][:5])} and "
                f"{shown(list(other[first:][:5]))}. Check pad_token, padding_side and the classes in {CONFIG}. Nothing "
                "was exported."
            )
    return ()


def _counted(row: list[int], config: DualEncoderConfig) -> list[int]:
    """Return the tokens of a row up to the one whose state is pooled."""
    end = config.text.end_token
    place = int(np.argmax(row)) if end is None else row.index(end) if end in row else len(row) - 1
    return row[: place + 1]
