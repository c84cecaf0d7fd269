"""Placeholders of pictures in prompts: read of a checkpoint's tokenizer, and compared with transformers' processor.

transformers' processor writes the marks around a picture into the text and encodes that. Here they are encoded once, at
export, and a bundle puts their ids in the place of a placeholder. That is the same where every mark begins and ends
with a special token, which is checked.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgeformer.checkpoints.picture_processor import PROCESSOR_FILE, WHOLE
from edgeformer.checkpoints.source import ModelSource, text_only_instead
from edgeformer.config import TowerTextConfig
from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, ExportError, shown
from edgeformer.export.importers.pictures.library_processor import library_processor
from edgeformer.families.picture_text import PictureTextFamily, load_seeing
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.placeholders.placeholder import Placeholder
from edgeformer.runtime.media.pictures.placeholders import expand
from edgeformer.runtime.media.pictures.processors import new_processor
from edgeformer.runtime.media.pictures.processors.processor import Processor
from edgeformer.runtime.text.tokenizer import Tokenizer

TOKEN_FIELDS = {
    "picture": ("image_token_id", "image_token_index"), "recording": ("audio_token_id", "audio_token_index"),
}  # fmt: skip
"""Names of the placeholder's id in config.json, by what it stands for."""

COUNTS = ("image_seq_len", "image_seq_length", "num_image_tokens")
"""Names of the states that a picture becomes in processor_config.json."""

PICTURES = ((61, 97), (97, 61), (48, 48))
"""Height and width of the pictures of the prompts that are compared."""

PROMPTS = ("{}{} Which of both is {}?", "Look:\n{}\nand {}{}")
"""Prompts of three pictures that are compared: first, adjacent, between line breaks, last."""


def read_placeholder(source: ModelSource, config: TowerTextConfig, folder: Path | None) -> Placeholder:
    """Return what stands for a picture in prompts. folder: of the tokenizer.

    Raises ConfigError where the files disagree, or where marks cannot be encoded by themselves.
    """
    family = load_seeing(source.hf_config)
    assert family is not None, "such a config comes from such a family"
    instead = text_only_instead(source.hf_config["model_type"])
    if folder is None or not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"{source.origin} has no tokenizer, so nothing says what stands for a picture or a recording.{instead}"
        )
    try:
        _check_processor_file(source.folder, family, config)
        tokenizer = Tokenizer(folder)
        marks = family.marks(tokenizer.config)
        encoder = _Encoder(source, config, tokenizer, marks.picture)
        return marks.placeholder(encoder, cast(PictureProcessor, source.pictures))
    except ConfigError as error:
        raise ConfigError(f"{error}{instead}") from error


def _check_processor_file(folder: Path, family: PictureTextFamily, config: TowerTextConfig) -> None:
    """Check the fields of processor_config.json, where there is one."""
    if not (folder / PROCESSOR_FILE).is_file():
        return
    data = read_object(folder / PROCESSOR_FILE)
    unknown = sorted(data.keys() - {*family.processor_fields, WHOLE, "tokenizer"})
    if unknown:
        raise ConfigError(f"{PROCESSOR_FILE} has fields that edgeformer does not know: {', '.join(unknown)}.")
    count = config.picture_tokens
    states = None if count is None else count - bool(config.newline)
    for name in COUNTS if states is not None else ():
        if data.get(name) not in (None, states):
            raise ConfigError(
                f"{PROCESSOR_FILE} has {name} = {shown(data[name])}, and by config.json a picture becomes {states} "
                "states."
            )


class _Encoder:
    """Encodes marks by a tokenizer, in the places where they stand; a `MarkEncoder`. picture: the placeholder."""

    def __init__(self, source: ModelSource, config: TowerTextConfig, tokenizer: Tokenizer, picture: str):
        self._vocab_size, self._tokenizer = config.vocab_size, tokenizer
        self.token, self.states = self.special(picture), config.picture_tokens
        self.video: int | None = source.hf_config.get("video_token_id")
        self.sound: int | None = source.hf_config.get("audio_token_id")
        names = TOKEN_FIELDS["picture" if config.sees_pictures else "recording"]
        named = {name: source.hf_config[name] for name in names if source.hf_config.get(name) is not None}
        wrong = {name: value for name, value in named.items() if value != self.token}
        if wrong or not named:
            said = ", ".join(f"{name} = {shown(value)}" for name, value in wrong.items()) or f"no {names[0]}"
            raise ConfigError(f"config.json has {said}, and the tokenizer has {self.token} for {picture!r}.")

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def special(self, text: str) -> int:
        """Return the id of a text that is one token, also between others."""
        ids = self._ids(text)
        if len(ids) != 1 or ids[0] >= self._vocab_size or self._ids(f"a{text}a").count(ids[0]) != 1:
            raise ConfigError(f"the tokenizer has no token {text!r}, which stands around pictures.")
        return ids[0]

    def between(self, before: str, text: str, after: str) -> tuple[int, ...]:
        """Return the ids of a text between two special tokens."""
        first, *ids, last = self._ids(f"{before}{text}{after}")
        if (first, last) != (self.special(before), self.special(after)) or not ids:
            raise ConfigError(f"the tokenizer does not encode {text!r} by itself between {before!r} and {after!r}.")
        if max(ids) >= self._vocab_size:
            raise ConfigError(f"the tokenizer encodes {text!r} by ids that the model has no embedding of.")
        return tuple(ids)

    def check_alike(self, one: str, first: str, last: str) -> None:
        """Check that text around a placeholder is encoded as around the marks that take its place."""
        marks = {self.special(each) for each in (first, last)}
        for before, after in (("a ", " b"), ("a", "b"), ("\n", "\n"), ("", " a"), ("a \n\n", "")):
            alone = [id for id in self._ids(f"{before}{one}{after}") if id != self.special(one)]
            around = [id for id in self._ids(f"{before}{first}{last}{after}") if id not in marks]
            if alone != around:
                raise ConfigError(
                    f"the tokenizer encodes text beside {one!r} in another way than beside {first!r} and {last!r}."
                )


def compare_prompts(source: ModelSource, placeholder: Placeholder, folder: Path | None) -> tuple[str, ...]:
    """Return why no prompts were compared, as a warning; nothing where both processors make the same ids of them.

    folder: of the tokenizer. Raises ExportError where ids differ.
    """
    assert folder is not None and source.pictures is not None
    tokenizer, processor = Tokenizer(folder, placeholder.prompt_text), new_processor(source.pictures)
    pictures = [np.full((*size, 3), 60 * index, np.uint8) for index, size in enumerate(_sizes(processor))]
    family = load_seeing(source.hf_config)
    assert family is not None
    mark = family.marks(tokenizer.config).spelled
    try:
        theirs = library_processor(source.folder)
        prompts = [(prompt.format(*(mark,) * len(PICTURES)), pictures[: len(PICTURES)]) for prompt in PROMPTS]
        prompts += [(f"Look: {mark}", [each]) for each in pictures]
        expected = [_their_ids(theirs, prompt, shown) for prompt, shown in prompts]
    except Exception as error:  # of any class: what a processor lacks shows anywhere in its constructor
        reason = shown(str(error), 200)
        return (f"transformers cannot run the processor, so the ids of its prompts were not compared: {reason}.",)
    for (prompt, seen), ids in zip(prompts, expected, strict=True):
        grids = [processor.among(len(seen)).grid(*each.shape[:2]) for each in seen]
        ours = expand(tokenizer.encode(prompt, add_special_tokens=not placeholder.bare), placeholder, grids)
        if ours != ids:
            at = next((i for i, (one, two) in enumerate(zip(ours, ids, strict=False)) if one != two), -1)
            raise ExportError(
                f"edgeformer does not make of a prompt with pictures what {type(theirs).__name__} of transformers "
                f"makes of it by the same files: {len(ours)} and {len(ids)} tokens, which differ from place {at} on. "
                "Nothing was exported: please report it with the model's processor_config.json and tokenizer."
                f"{text_only_instead(source.hf_config['model_type'])}"
            )
    return ()


def _sizes(processor: Processor) -> list[tuple[int, int]]:
    """Return the sizes of the pictures that are compared: with one beyond the limit of states, where there is one."""
    return [*PICTURES, *([] if processor.limit is None else [processor.limit])]


def _their_ids(processor: Any, prompt: str, pictures: Sequence[Any]) -> list[int]:
    """Return the ids of transformers' processor."""
    found = processor(text=[prompt], images=[list(pictures)], return_tensors="np")["input_ids"][0]
    return [int(each) for each in found]
