"""Pictures or recordings of a row: in a column, or in the parts of its messages; they are read when the row runs."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.batch.options import BatchOptions, Verb
from edgeformer.batch.pieces import Row
from edgeformer.batch.storage import open_url
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.media.pictures.picture_files import MOST_BYTES

VERBS: tuple[Verb, ...] = ("generate", "chat", "embed", "classify", "fill-mask")
"""Verbs of rows with pictures or recordings."""


@dataclass(frozen=True)
class Medium:
    """A kind of thing that a model reads beside text.

    Attributes:
        name: of one, in errors.
        part: type of a part that stands for it in a chat template.
        option: of a job, the name of its column.
        columns: that hold it where the job names none, the first that exists.
        types: of parts of messages that have it.
        fields: of such a part that say where it is, the first that it has.
    """

    name: str
    part: str
    option: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    fields: tuple[str, ...]


OF_ALL = ("url", "path", "bytes", "source")
MEDIA = {
    "picture": Medium(
        name="picture", part="image", option="images", columns=("images", "image"),
        types=("image", "image_url", "input_image"), fields=("image_url", "image", *OF_ALL),
    ),
    "recording": Medium(
        name="recording", part="audio", option="sounds", columns=("sounds", "sound", "audio"),
        types=("audio", "audio_url", "input_audio"), fields=("audio_url", "input_audio", "audio", *OF_ALL),
    ),
}  # fmt: skip
"""Kinds of things that models read beside text, by name."""


def medium_of(manifest: Manifest) -> Medium | None:
    """Return what rows have beside text, or instead of it; None for a model of texts, and one of recordings alone."""
    if manifest.task == "audio-text-to-text":
        return MEDIA["recording"]
    return MEDIA["picture"] if manifest.placeholder is not None or manifest.transcribes_pictures else None


@dataclass(frozen=True)
class MediaPrompt:
    """A prompt with pictures or recordings.

    Attributes:
        prompt: a text with a placeholder for each of them, or messages with a part that stands for each; None for a
            picture that is transcribed.
        media: each its bytes, a data: URL, or a path or fsspec URL.
        folder: that relative paths begin in.
        name: of one of them, for errors.
    """

    prompt: Any
    media: Sequence[str | bytes]
    folder: str
    name: str

    def contents(self) -> list[bytes]:
        """Return the bytes of all of them. Raises RequestError for one that cannot be read."""
        return [each if isinstance(each, bytes) else _read(each, self.folder, self.name) for each in self.media]


def find_media(options: BatchOptions, verb: Verb, manifest: Manifest, columns: Sequence[str]) -> str | None:
    """Return the column that holds the pictures or recordings of a job's rows; None without one.

    Raises RequestError for a column that is not there, and where the bundle or the verb reads none of these.
    """
    medium = medium_of(manifest)
    reads = medium is not None and verb in VERBS
    for each in MEDIA.values():
        given = getattr(options, each.option)
        if given is None:
            continue
        if medium is not each or not reads:
            able = f"{verb} reads none" if medium is each else "this bundle reads none"
            raise RequestError(f"{each.option} names a column of {each.name}s, and {able}.")
        if given not in columns:
            raise RequestError(f"the input has no column {given!r}; it has {', '.join(map(repr, columns))}.")
        return str(given)
    return next((name for name in medium.columns if name in columns), None) if medium is not None and reads else None


def with_media(prompt: Any, row: Row, column: str | None, verb: Verb, path: str, medium: Medium | None) -> Any:
    """Return a prompt with its pictures or recordings; as it is, where it has none.

    column: of the row's; they are those of the parts of messages that name none themselves, or stand in front of the
    text of a chat. path: of the input file. medium: that the model reads; None for a model of texts. Raises
    RequestError for what is none, and for parts that the model does not read.
    """
    folder = path.rpartition("/")[0]
    if verb == "transcribe":
        return prompt if medium is None else MediaPrompt(None, list(_places(prompt, medium.name)), folder, medium.name)
    if verb == "chat" and isinstance(prompt, list):
        messages, media = _messages(prompt, None if column is None else row.get(column), medium)
        return MediaPrompt(messages, media, folder, medium.name) if media and medium is not None else messages
    if medium is None or column is None:
        return prompt
    found = list(_places(row.get(column), medium.name))
    if verb == "chat" and isinstance(prompt, str) and found:
        content = [*({"type": medium.part} for _ in found), {"type": "text", "text": prompt}]
        return MediaPrompt([{"role": "user", "content": content}], found, folder, medium.name)
    return MediaPrompt(prompt, found, folder, medium.name) if found else prompt


def _messages(messages: Sequence[Any], cell: Any, medium: Medium | None) -> tuple[list[Any], list[str | bytes]]:
    """Return messages whose pictures or recordings are parts of a chat template, and these in their order."""
    column = iter(()) if medium is None else _places(cell, medium.name)
    media, changed = list[str | bytes](), list[Any]()
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, Sequence) or isinstance(content, str):
            changed.append(message)
            continue
        parts = list[Any]()
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            read = next((each for each in MEDIA.values() if kind in each.types), None)
            if read is None:
                # Rows of Parquet have all fields of all parts.
                parts.append({k: v for k, v in part.items() if v is not None} if isinstance(part, Mapping) else part)
                continue
            if read is not medium:
                raise RequestError(f"a part of a message is a {read.name}, and this bundle reads none.")
            media.append(_medium_of(part, column, read))
            parts.append({"type": read.part})
        changed.append({**message, "content": parts})
    return changed, [*media, *column]


def _medium_of(part: Mapping[str, Any], column: Iterator[str | bytes], medium: Medium) -> str | bytes:
    value = next((part[name] for name in medium.fields if part.get(name) is not None), None)
    own = list(_places(value, medium.name)) or [each for each in [next(column, None)] if each is not None]
    if len(own) != 1:
        raise RequestError(
            f"a part of a message is a {medium.name}, and neither the part nor the column of {medium.name}s has one."
        )
    return own[0]


def _places(value: Any, name: str) -> Iterator[str | bytes]:
    """Yield the pictures or recordings of a cell: one, or a list of them; an object has its bytes, URL or path."""
    if value is None or value == "":
        return
    if isinstance(value, str | bytes):
        yield value
    elif isinstance(value, Mapping):
        inner = next((value[field] for field in ("bytes", "url", "path") if value.get(field) is not None), None)
        if isinstance(value.get("data"), str):  # of OpenAI's `input_audio`
            inner = f"data:;base64,{value['data']}"
        if not isinstance(inner, str | bytes):
            raise RequestError(f"a {name} is an object without bytes, url or path.")
        yield inner
    elif isinstance(value, Sequence):
        for each in value:
            yield from _places(each, name)
    else:
        raise RequestError(f"a {name} is {str(value)[:40]!r}; it must be a path, a URL, bytes or a list of these.")


def _read(place: str, folder: str, name: str) -> bytes:
    """Return the bytes of a picture or a recording at a data: URL, a URL of fsspec, or a path. Raises RequestError."""
    if place.startswith("data:"):
        head, _, data = place.partition(",")
        try:
            return base64.b64decode(data, validate=True) if head.endswith(";base64") else _no_base64()
        except (binascii.Error, ValueError):
            raise RequestError(f"a data: URL of a {name} is not in base64.") from None
    inside = "://" in place or place.startswith("/") or not folder
    url = place if inside else f"{folder}/{place}"
    try:
        files, path = open_url(url)
        if files.size(path) > MOST_BYTES:
            raise RequestError(f"{url} has more than {MOST_BYTES:,} bytes, which a {name} may have.")
        content: bytes = files.cat_file(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"the {name} {url[:200]} cannot be read: {error}.") from None
    return content


def _no_base64() -> bytes:
    raise ValueError
