"""Read pictures: files of PNG, JPEG, WebP, GIF and BMP with Pillow (extra `vision`), Pillow's images, and arrays.

    pixels = read_picture("cat.jpg", white_background=True)     # uint8 [H, W, 3]

The first bytes of a file decide which of Pillow's parsers sees it, and only those of common formats are let through.
Bytes, pixels and sides are limited before anything is decoded. Of an animation, the first frame is read.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union, cast

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import MissingDependencyError, RequestError, require, shown
from edgeformer.runtime.media.pictures.resample import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Picture: TypeAlias = Union[str, Path, bytes, NDArray[np.uint8], "Image", "LowDetail"]
"""A picture: the path of a file, its content, an array uint8 [H, W] or [H, W, 1, 3 or 4], or an image of Pillow."""

MOST_BYTES = 1 << 26
"""Bytes of a file at most: 64 MiB, as a PNG of a camera's 20 megapixels has."""

MOST_PIXELS = 1 << 26
"""Pixels at most: 67 million, whose decoding takes 256 MiB."""

BAND = 1 << 18
"""Pixels that are laid on white at a time: a picture of all that are taken would need 3 GB at once."""

LONGEST_SIDE = 1 << 14
"""Pixels of a side at most."""

FORMATS = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"GIF8": "GIF", b"BM": "BMP"}
"""The formats that are read, with Pillow's names, by the first bytes of a file."""

WIDE_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of 16 bits. Their upper 8 are read, as Pillow reads files of 16 bits per colour; its own conversion of
these modes makes everything above 255 white."""

_CONVERT = "Convert it to PNG or JPEG first."


@dataclass(frozen=True)
class LowDetail:
    """A picture that becomes as few tokens as its processor allows, as without tiles."""

    picture: Picture


def is_picture(value: Any) -> TypeGuard[Picture]:
    """Return whether a value is one picture, and not several."""
    kinds = str | Path | bytes | bytearray | memoryview | np.ndarray | LowDetail
    return isinstance(value, kinds) or _is_pillow(value)


def read_picture(picture: Picture, *, white_background: bool, name: str = "the picture") -> Pixels:
    """Return the pixels of a picture, uint8 [H, W, 3], upright as its EXIF orientation says.

    white_background: transparent pictures are laid on white; otherwise their transparency is dropped. name: of a
    picture without a path, for errors.

    Raises RequestError for what is no picture, a file of another format or a damaged one, and a picture of no pixels or
    too many; where Pillow is not installed, RequestError that names the extra for all but arrays.
    """
    if isinstance(picture, LowDetail):
        picture = picture.picture
    if isinstance(picture, np.ndarray):
        return _of_array(picture, white_background, name)
    if _is_pillow(picture):
        return _of_image(picture, white_background, name)
    content, name = _content(picture, name)
    image, kind = _opened(content, name)
    with image:
        return _of_image(image, white_background, name, kind)


def picture_size(picture: Picture, name: str = "the picture") -> tuple[int, int]:
    """Return the height and width of a picture as its header says, before EXIF turns it; nothing is decoded.

    Raises RequestError as `read_picture`, but for what only decoding shows.
    """
    if isinstance(picture, LowDetail):
        picture = picture.picture
    if isinstance(picture, np.ndarray):
        _check_array(picture, name)
        return picture.shape[0], picture.shape[1]
    if _is_pillow(picture):
        width, height = cast(Any, picture).size
        _check_size(width, height, name)
        return height, width
    content, name = _content(picture, name)
    image, _ = _opened(content, name)
    with image:
        width, height = image.size
    _check_size(width, height, name)
    return height, width


def _content(picture: Any, name: str) -> tuple[bytes, str]:
    """Return the bytes of a file, which is given by its path or by them, and its name in errors."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture), name
    if not isinstance(picture, str | os.PathLike):
        raise RequestError(
            f"{name} is {shown(picture)}; it must be the path of a file, its bytes, an image of Pillow, or an array "
            "uint8 [height, width, 3]."
        )
    path = Path(picture)
    try:
        size = path.stat().st_size
        _check_bytes(size, str(path))
        return path.read_bytes(), str(path)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise RequestError(f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', error)}.") from error


def _is_pillow(value: Any) -> bool:
    """Return whether a value is an image of Pillow, which is imported already where there is one."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def _check_bytes(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise RequestError(f"{name} has {size:,} bytes; a picture may have {MOST_BYTES:,}. Make it smaller.")


def _check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise RequestError(f"{name} is {width} × {height} pixels; it has none to see.")
    if max(width, height) > LONGEST_SIDE:
        raise RequestError(
            f"{name} is {width:,} × {height:,} pixels; a side may have {LONGEST_SIDE:,}. Make it smaller, or cut it."
        )
    if width * height > MOST_PIXELS:
        raise RequestError(
            f"{name} is {width:,} × {height:,} pixels, {width * height:,} in all; a picture may have {MOST_PIXELS:,}. "
            "Make it smaller."
        )


def _check_array(array: NDArray[Any], name: str) -> None:
    shape = array.shape
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise RequestError(
            f"{name} is an array {array.dtype} {list(shape)}; it must be uint8 [height, width, 3], or [height, width] "
            "for grey, or with a fourth channel for opacity."
        )
    _check_size(shape[1], shape[0], name)


def _of_array(array: NDArray[Any], white_background: bool, name: str) -> Pixels:
    _check_array(array, name)
    shape = array.shape
    if array.ndim == 2 or shape[2] == 1:
        return np.repeat(array.reshape(*shape[:2], 1), 3, axis=2)
    if shape[2] == 3 or not white_background:
        return array[..., :3]
    return on_white(array)


def on_white(pixels: Pixels) -> Pixels:
    """Return pixels [H, W, 4] with opacity laid on white, [H, W, 3], as Pillow's alpha_composite rounds it."""
    laid = np.empty((*pixels.shape[:2], 3), np.uint8)
    for rows in _bands(*pixels.shape[:2]):
        laid[rows] = _mixed(pixels[rows])
    return laid


def _bands(height: int, width: int) -> Iterator[slice]:
    """Yield the rows of a picture, so many at a time that arithmetic in 32 bits takes little memory."""
    rows = max(BAND // width, 1)
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))


def _mixed(pixels: Pixels) -> Pixels:
    opacity = pixels[..., 3:].astype(np.int32)
    # Fixed point with 7 bits more than the opacity of 0 to 255; division by 255 as in AlphaComposite.c.
    weight = opacity << 7
    mixed = pixels[..., :3] * weight + 255 * (255 * 128 - weight) + (0x80 << 7)
    colours = (((mixed >> 8) + mixed) >> 8) >> 7
    return np.where(opacity == 0, 255, colours).astype(np.uint8)


def _opened(content: bytes, name: str) -> tuple[Any, str]:
    """Return an image of Pillow that is not decoded yet, and its format."""
    _check_bytes(len(content), name)
    kind = next((kind for start, kind in FORMATS.items() if content.startswith(start)), None)
    if kind is None or (kind == "WEBP" and content[8:12] != b"WEBP"):
        raise RequestError(f"{name} is not a picture of PNG, JPEG, WebP, GIF or BMP. {_CONVERT}")
    try:
        pillow: Any = require("PIL.Image", "vision")
    except MissingDependencyError as error:
        raise RequestError(
            f"{name} cannot be read without Pillow. Install it with: pip install 'edgeformer[vision]'. Without it, "
            "only arrays are read."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own limits, which are larger, and of damaged EXIF
        try:
            return pillow.open(BytesIO(content), formats=[kind]), kind
        except Exception as error:  # of any class: a damaged file makes parsers raise what they like
            raise _damaged(name, error, kind) from error


def _of_image(image: Any, white_background: bool, name: str, kind: str = "an image of Pillow") -> Pixels:
    width, height = image.size
    _check_size(width, height, name)
    operations: Any = require("PIL.ImageOps", "vision")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if kind in FORMATS.values():  # an image of our own, which nobody else has
                operations.exif_transpose(image, in_place=True)
            else:
                image = operations.exif_transpose(image)
            return _rgb(image, white_background, name)
        except RequestError:
            raise
        except Exception as error:  # of any class: a damaged file makes decoders raise what they like
            raise _damaged(name, error, kind) from error


def _rgb(image: Any, white_background: bool, name: str) -> Pixels:
    """Return the pixels of an image of Pillow as RGB, uint8 [H, W, 3]."""
    if image.mode in WIDE_MODES:
        upper = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(upper[..., None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise RequestError(f"{name} has values of 32 bits, whose white is not known. {_CONVERT}")
    transparent = "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None
    if transparent and white_background:
        laid = np.empty((image.height, image.width, 3), np.uint8)
        for rows in _bands(image.height, image.width):
            band = image.crop((0, rows.start, image.width, rows.stop))
            laid[rows] = _mixed(np.asarray(band.convert("RGBA")))
        return laid
    pixels: Pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    return pixels


def _damaged(name: str, error: Exception, kind: str) -> RequestError:
    said = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return RequestError(f"{name} cannot be read as {kind}: {said}. It may be damaged or cut off.")
