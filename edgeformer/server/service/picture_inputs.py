"""Texts and pictures of requests for embeddings: data: URLs become bytes, and all of it waits in the engine."""

import base64
import binascii
import re
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime import DualEncoder, VisionEncoder
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import EmbeddingPart
from edgeformer.server.service.served import ServedModel

MOST_INPUTS = 64
"""Texts and pictures of a request at most: each picture takes a run of the tower."""

DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,40};base64,")


def plain_texts(served: ServedModel, given: Any) -> Any:
    """Return the input of a request to a model of texts. Raises ApiError for pictures."""
    if not isinstance(given, list) or not any(isinstance(part, EmbeddingPart) for part in given):
        return given
    if any(isinstance(part, EmbeddingPart) and part.image_url is not None for part in given):
        raise ApiError(
            400, f"the model {served.name!r} reads texts, and no pictures.", code="wrong_model", param="input"
        )
    return [part.text if isinstance(part, EmbeddingPart) else part for part in given]


def submit_inputs(
    served: ServedModel, model: VisionEncoder | DualEncoder, given: Any
) -> "tuple[int, list[Future[Any]]]":
    """Put the texts and pictures of a request into the queue; return their tokens, and a future of each vector.

    Bytes and pixels are checked before a picture is decoded. Raises ApiError for what is neither a text that the model
    reads nor a picture.
    """
    parts: Sequence[Any] = given if isinstance(given, list) else [given]
    if not parts:
        raise ApiError(400, "input is empty; give at least one text or picture.", param="input")
    if len(parts) > MOST_INPUTS:
        raise ApiError(400, f"input has {len(parts)} texts and pictures; {MOST_INPUTS} are allowed.", param="input")
    contents = [_content(served, model, part, place) for place, part in enumerate(parts)]
    texts = [content for content in contents if isinstance(content, str)]
    pictures = [content for content in contents if isinstance(content, bytes)]
    try:
        waiting = {
            str: iter(served.engine.submit_texts(texts)) if texts else iter(()),
            bytes: iter(served.engine.submit_pictures(pictures)) if pictures else iter(()),
        }
    except RequestError as error:
        raise as_api_error(error, "input") from None
    tokens = len(pictures) * model.tower.context_length
    if isinstance(model, DualEncoder):
        tokens += sum(len(model.text_row(text)) for text in texts)
    return tokens, [next(waiting[type(content)]) for content in contents]


def _content(served: ServedModel, model: VisionEncoder | DualEncoder, part: Any, place: int) -> str | bytes:
    """Return a text, or the bytes of a picture."""
    param = f"input.{place}"
    text = part.text if isinstance(part, EmbeddingPart) else part
    if isinstance(part, EmbeddingPart) and part.image_url is not None:
        return _bytes_of(part.image_url.url, f"{param}.image_url.url")
    if not isinstance(text, str):
        raise ApiError(400, f"{param}: it must be a text or a picture, and no token ids.", param=param)
    if not isinstance(model, DualEncoder):
        what = "it must be a picture, {type: image_url, image_url: {url: data:image/…;base64,…}}"
        raise ApiError(400, f"{param}: the model {served.name!r} reads no texts; {what}.", param=param)
    return text


def _bytes_of(url: str, param: str) -> bytes:
    """Return the bytes in a data: URL. Raises ApiError for every other URL."""
    start = DATA_URL.match(url)
    if start is None:
        scheme = url.partition(":")[0][:20]
        raise ApiError(
            400,
            f"{param}: it begins with {scheme!r}, and a picture must be in the request: data:image/png;base64,… This "
            "server fetches nothing from other machines and reads no files for its clients.",
            param=param,
        )
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{param}: what follows base64, is not in base64.", param=param) from None
