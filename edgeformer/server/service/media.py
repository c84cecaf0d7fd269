"""Pictures and recordings of requests: base64 becomes bytes, within the limits of the server, before it is decoded."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, LowDetail, Seq2SeqLM
from edgeformer.runtime.media.pictures.picture_files import picture_size
from edgeformer.runtime.media.pictures.resample import Pixels
from edgeformer.runtime.media.sound.audio import SAMPLE_RATE, Samples, resample
from edgeformer.runtime.media.sound.sound_files import decode_audio
from edgeformer.runtime.tasks.causal_lm import SeenPrompt
from edgeformer.runtime.tasks.tower_text import TowerTextLM
from edgeformer.server.remote_pictures.fetching import FetchError, PictureFetcher
from edgeformer.server.remote_pictures.hosts import read_hosts
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import ChatMessage, Part
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModel

DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,40};base64,")

DECODED_RATE = 48_000
"""Samples a second of files: of one with more, fewer seconds are decoded than the server takes."""


class RequestMedia:
    """The pictures or recordings of a conversation, in their order.

    Attributes:
        media: pictures as the runtime takes them, or files of recordings.
        paths: of each in the request, for errors.
        seconds: of a recording at most.
    """

    def __init__(self, media: Sequence[Any] = (), paths: Sequence[str] = (), seconds: int = 0):
        self.media, self.paths, self.seconds = media, paths, seconds

    def seen(self, model: CausalLM, tokens: list[int], most_tokens: int) -> SeenPrompt:
        """Return the prompt with all of them, which are decoded. Raises ApiError that names the one that is wrong."""
        assert isinstance(model, TowerTextLM), "`media_of` has checked it"
        try:
            media = self.media
            if model.reads == "sounds":
                media = [self._samples(*each) for each in zip(media, self.paths, strict=True)]
            return model.see(tokens, media, most_tokens=most_tokens, names=self.paths)
        except RequestError as error:
            named = [path for path in self.paths if str(error).startswith(f"{path} ")]
            raise as_api_error(error, named[0] if named else "messages") from None

    def pixels(self, model: Seq2SeqLM) -> Pixels:
        """Return the pixels of the one picture, which is decoded. Raises ApiError for one that cannot be read."""
        [picture], [path] = self.media, self.paths
        try:
            return model.processor.read(picture.picture if isinstance(picture, LowDetail) else picture, path)
        except RequestError as error:
            raise as_api_error(error, path) from None

    def _samples(self, content: bytes, path: str) -> Samples:
        """Return the samples of a file. Raises RequestError for one that cannot be read, or that is too long."""
        samples = resample(*decode_audio(content, path, self.seconds * DECODED_RATE))
        if len(samples) > self.seconds * SAMPLE_RATE:
            heard = f"{len(samples) / SAMPLE_RATE:,.1f} seconds"
            raise RequestError(f"{path} has {heard}; this server takes {self.seconds:,} of a recording.")
        return samples


def media_of(served: ServedModel, messages: Sequence[ChatMessage], options: ServerOptions) -> RequestMedia:
    """Return the pictures or recordings of a conversation; nothing but headers of pictures is read.

    Raises ApiError for what the model does not read, beyond the limits of the server, or at a URL that is neither a
    data: URL nor one of a host that pictures are fetched from.
    """
    found = list(_parts(messages))
    for path, part in found:
        if part.image_url is not None and not served.reads_pictures:
            raise _not_read(served, path, "pictures")
        if part.input_audio is not None and not served.hears:
            raise _not_read(served, path, "recordings")
    most, what = (options.max_recordings, "recordings") if served.hears else (options.max_pictures, "pictures")
    if len(found) > most:
        message = f"the request has {len(found)} {what}; this server takes {most}."
        raise ApiError(400, message, param=found[most][0])
    fetcher = fetcher_of(options)
    media = [_content(part, path, options, fetcher) for path, part in found]
    return RequestMedia(media, [path for path, _ in found], options.max_recording_seconds)


def only_picture(served: ServedModel, messages: Sequence[ChatMessage], options: ServerOptions) -> RequestMedia:
    """Return the picture of a request to a model that writes its text; of the picture, only its header is read.

    Raises ApiError as `media_of`, and for a conversation of anything but one picture, of which nothing would be read.
    """
    for place, message in enumerate(messages):
        content = message.content
        parts = [content] if isinstance(content, str) else [part.text for part in content or ()]
        if place or message.role != "user" or message.tool_calls or any(text and text.strip() for text in parts):
            raise _not_one_picture(served, f"messages.{place}")
    media = media_of(served, messages, options)
    if len(media.media) != 1:
        raise _not_one_picture(served, media.paths[1] if media.media else "messages.0.content")
    return media


def _not_one_picture(served: ServedModel, path: str) -> ApiError:
    reason = f"the model {served.name!r} writes the text of one picture, and reads no text and no conversation"
    return ApiError(400, f"{path}: {reason}; send one message of the user with one image_url.", param=path)


def _not_read(served: ServedModel, path: str, what: str) -> ApiError:
    read = "text, and no" if served.task == "causal-lm" else "no"
    return ApiError(400, f"{path}: the model {served.name!r} reads {read} {what}.", code="wrong_model", param=path)


def _parts(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, Part]]:
    """Yield pictures and recordings of messages, each behind its path in the request.

    Raises ApiError outside the user's messages.
    """
    for place, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            begin = f"messages.{place}.content.{index}"
            if part.image_url is not None:
                path, what = part.image_url.path or f"{begin}.image_url.url", "pictures"
            elif part.input_audio is not None:
                path, what = part.input_audio.path or f"{begin}.input_audio.data", "recordings"
            else:
                continue
            if message.role != "user":
                text = f"{path}: {what} stand in messages of the user, and this one is of the {message.role}."
                raise ApiError(400, text, param=path)
            yield path, part


def _content(part: Part, path: str, options: ServerOptions, fetcher: PictureFetcher) -> Any:
    """Return a picture as the runtime takes it, or the file of a recording."""
    if part.image_url is not None:
        content = picture_bytes(part.image_url.url, path, options, fetcher)
        return LowDetail(content) if part.image_url.detail == "low" else content
    assert part.input_audio is not None, "it is the only other kind"
    return _decoded(part.input_audio.data, path, "recording", options.max_recording_bytes)


def _decoded(data: str, path: str, what: str, most: int, start: int = 0) -> bytes:
    """Return the bytes of base64 from a place on. Raises ApiError for more than so many, and for what is not base64."""
    size = (len(data) - start) * 3 // 4
    if size > most + 2:  # padding
        raise ApiError(400, f"{path}: the {what} has {size:,} bytes; this server takes {most:,}.", param=path)
    try:
        return base64.b64decode(data[start:], validate=True)
    except (binascii.Error, ValueError):
        where = "what follows base64," if start else "it"
        raise ApiError(400, f"{path}: {where} is not in base64.", param=path) from None


def fetcher_of(options: ServerOptions) -> PictureFetcher:
    """Return what fetches the pictures of a request."""
    return PictureFetcher(read_hosts(options.picture_hosts), options.max_picture_bytes, options.picture_seconds)


def picture_bytes(url: str, path: str, options: ServerOptions, fetcher: PictureFetcher) -> bytes:
    """Return the bytes of a picture in a data: URL, or of a host that is listed; only the header of it is read.

    path: of the URL in the request. Raises ApiError for every other URL, and for what is no picture, or one beyond the
    limits of the server.
    """
    start = DATA_URL.match(url)
    if start is None and options.picture_hosts and url.startswith(("http://", "https://")):
        try:
            return _sized(fetcher.fetch(url), path, options)
        except FetchError as error:
            raise ApiError(400, f"{path}: {error}", code="invalid_image_url", param=path) from None
    if start is None:
        scheme = url.partition(":")[0][:20]
        raise ApiError(
            400,
            f"{path}: it begins with {scheme!r}, and a picture must be in the request: data:image/png;base64,… This "
            "server fetches nothing from other machines and reads no files for its clients.",
            param=path,
        )
    return _sized(_decoded(url, path, "picture", options.max_picture_bytes, start.end()), path, options)


def _sized(content: bytes, path: str, options: ServerOptions) -> bytes:
    """Return the bytes of a picture. Raises ApiError for what is no picture, or one of too many pixels."""
    try:
        height, width = picture_size(content, path)
    except RequestError as error:
        raise as_api_error(error, path) from None
    if height * width > options.max_picture_pixels:
        pixels = f"{width:,} × {height:,} pixels, {height * width:,} in all"
        message = f"{path} is {pixels}; this server takes {options.max_picture_pixels:,}."
        raise ApiError(400, message, param=path)
    return content
