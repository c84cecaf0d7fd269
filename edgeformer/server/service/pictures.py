"""Pictures of requests: data: URLs become bytes, within the limits of the server, before anything is decoded."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, LowDetail
from edgeformer.runtime.media.pictures.picture_files import Picture, picture_size
from edgeformer.runtime.tasks.causal_lm import SeenPrompt
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import ChatMessage, PictureUrl
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModel

DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,40};base64,")


class RequestPictures:
    """The pictures of a conversation, in their order.

    Attributes:
        images: as the runtime takes them.
        paths: of their URLs in the request, for errors.
    """

    def __init__(self, images: Sequence[Picture], paths: Sequence[str]):
        self.images, self.paths = images, paths

    def seen(self, model: CausalLM, tokens: list[int], most_tokens: int) -> SeenPrompt:
        """Return the prompt with its pictures, which are decoded. Raises ApiError that names the one that is wrong."""
        try:
            return model.see(tokens, self.images, most_tokens=most_tokens, names=self.paths)
        except RequestError as error:
            named = [path for path in self.paths if str(error).startswith(f"{path} ")]
            raise as_api_error(error, named[0] if named else "messages") from None


def pictures_of(served: ServedModel, messages: Sequence[ChatMessage], options: ServerOptions) -> RequestPictures:
    """Return the pictures of a conversation; nothing but their headers is read.

    Raises ApiError for pictures that the model does not read, beyond the limits of the server, or at a URL that is not
    a data: URL.
    """
    found = list(_parts(messages))
    if not found:
        return RequestPictures([], [])
    if not served.reads_pictures:
        path = found[0][0]
        message = f"{path}: the model {served.name!r} reads text, and no pictures."
        raise ApiError(400, message, code="wrong_model", param=path)
    if len(found) > options.max_pictures:
        path = found[options.max_pictures][0]
        message = f"the request has {len(found)} pictures; this server takes {options.max_pictures}."
        raise ApiError(400, message, param=path)
    images: list[Picture] = []
    for path, picture in found:
        content = picture_bytes(picture.url, path, options)
        images.append(LowDetail(content) if picture.detail == "low" else content)
    return RequestPictures(images, [path for path, _ in found])


def _parts(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, PictureUrl]]:
    """Yield the pictures of messages, each behind its path in the request. Raises ApiError outside the user's."""
    for place, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.image_url is not None:
                path = part.image_url.path or f"messages.{place}.content.{index}.image_url.url"
                if message.role != "user":
                    text = f"{path}: pictures stand in messages of the user, and this one is of the {message.role}."
                    raise ApiError(400, text, param=path)
                yield path, part.image_url


def picture_bytes(url: str, path: str, options: ServerOptions) -> bytes:
    """Return the bytes of a picture in a data: URL; of the picture, only its header is read.

    path: of the URL in the request. Raises ApiError for every other URL, and for what is no picture, or one beyond the
    limits of the server.
    """
    start = DATA_URL.match(url)
    if start is None:
        scheme = url.partition(":")[0][:20]
        raise ApiError(
            400,
            f"{path}: it begins with {scheme!r}, and a picture must be in the request: data:image/png;base64,… This "
            "server fetches nothing from other machines and reads no files for its clients.",
            param=path,
        )
    size = (len(url) - start.end()) * 3 // 4
    if size > options.max_picture_bytes + 2:  # padding
        message = f"{path}: the picture has {size:,} bytes; this server takes {options.max_picture_bytes:,}."
        raise ApiError(400, message, param=path)
    try:
        content = base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{path}: what follows base64, is not in base64.", param=path) from None
    try:
        height, width = picture_size(content, path)
    except RequestError as error:
        raise as_api_error(error, path) from None
    if height * width > options.max_picture_pixels:
        pixels = f"{width:,} × {height:,} pixels, {height * width:,} in all"
        message = f"{path} is {pixels}; this server takes {options.max_picture_pixels:,}."
        raise ApiError(400, message, param=path)
    return content
