"""Texts and pictures of requests for embeddings, which wait in the engine."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime import DualEncoder, PictureEncoder, VisionEncoder
from edgeformer.server.remote_pictures.fetching import PictureFetcher
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import EmbeddingPart
from edgeformer.server.service.media import fetcher_of, picture_bytes
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.prompts import check_length
from edgeformer.server.service.served import ServedModel

MOST_INPUTS = 64
"""Texts and pictures of a request at most: each picture takes a run of the tower."""


def plain_texts(served: ServedModel, given: Any) -> Any:
    """Return the input of a request to a model of texts. Raises ApiError for pictures."""
    if not isinstance(given, list) or not any(isinstance(part, EmbeddingPart) for part in given):
        return given
    if has_pictures(given):
        raise ApiError(
            400, f"the model {served.name!r} reads texts, and no pictures.", code="wrong_model", param="input"
        )
    return [part.text if isinstance(part, EmbeddingPart) else part for part in given]


def submit_inputs(
    served: ServedModel, model: VisionEncoder | DualEncoder | PictureEncoder, given: Any, options: ServerOptions
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
    fetcher = fetcher_of(options)
    contents = [_content(served, model, part, place, options, fetcher) for place, part in enumerate(parts)]
    if isinstance(model, PictureEncoder):
        return _submit_texts(served, model, contents, options)
    texts = [content for content in contents if isinstance(content, str)]
    pictures = [content for content in contents if isinstance(content, bytes)]
    try:
        waiting = {
            str: iter(served.engine.submit_texts(texts)) if texts else iter(()),
            bytes: iter(served.engine.submit_pictures(pictures)) if pictures else iter(()),
        }
    except RequestError as error:
        raise as_api_error(error, "input") from None
    tokens = sum(map(model.tokens_of, pictures))
    if isinstance(model, DualEncoder):
        tokens += sum(len(model.text_row(text)) for text in texts)
    return tokens, [next(waiting[type(content)]) for content in contents]


def has_pictures(given: Any) -> bool:
    """Return whether the input of a request has a picture."""
    parts = given if isinstance(given, list) else []
    return any(isinstance(part, EmbeddingPart) and part.image_url is not None for part in parts)


def _submit_texts(
    served: ServedModel, model: PictureEncoder, contents: Sequence[str | bytes], options: ServerOptions
) -> "tuple[int, list[Future[Any]]]":
    """Put texts into the queue of an encoder that reads pictures, each of which is a text of one placeholder."""
    alone = str(model.require_tokenizer().backend.id_to_token(model.placeholder.token))
    encoded: list[list[int]] = []
    for place, content in enumerate(contents):
        param = f"input.{place}"
        try:
            if isinstance(content, bytes):
                encoded.append(model.see(alone, [content], names=[f"{param}.image_url.url"]).read())
            else:
                encoded.append(model.encode_text(model.with_prompt(content))[0])
        except RequestError as error:
            raise as_api_error(error, param) from None
        check_length(served, encoded[-1], options.max_prompt_tokens, param)
    try:
        return sum(map(len, encoded)), served.engine.submit_texts(encoded)
    except RequestError as error:
        raise as_api_error(error, "input") from None


def _content(
    served: ServedModel,
    model: VisionEncoder | DualEncoder | PictureEncoder,
    part: Any,
    place: int,
    options: ServerOptions,
    fetcher: PictureFetcher,
) -> str | bytes:
    """Return a text, or the bytes of a picture."""
    param = f"input.{place}"
    text = part.text if isinstance(part, EmbeddingPart) else part
    if isinstance(part, EmbeddingPart) and part.image_url is not None:
        return picture_bytes(part.image_url.url, f"{param}.image_url.url", options, fetcher)
    if not isinstance(text, str):
        raise ApiError(400, f"{param}: it must be a text or a picture, and no token ids.", param=param)
    if isinstance(model, VisionEncoder):
        what = "it must be a picture, {type: image_url, image_url: {url: data:image/…;base64,…}}"
        raise ApiError(400, f"{param}: the model {served.name!r} reads no texts; {what}.", param=param)
    return text
