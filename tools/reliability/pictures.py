"""Files of pictures with faults: of their bytes, and of what stands in them where checksums are right again."""

import io
import random
import struct
import zlib
from functools import cache
from typing import Any

from reliability.mutations import mutate_bytes

SIDES = (37, 29)
MORE = (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"gAMA")
"""Chunks of a PNG that are put in."""
ODD_NUMBERS = (0, 1, 2, 3, 7, 8, 16, 0x7F, 0x80, 0xFF, 0x100, 0x2000, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


@cache
def samples() -> tuple[bytes, ...]:
    """Return a picture of every format and mode that is read, some of several frames, turned, or with profiles."""
    from PIL import Image

    draw = random.Random(0)
    size = SIDES[0] * SIDES[1]
    colours = Image.frombytes("RGBA", SIDES, draw.randbytes(4 * size))
    turned = Image.Exif()
    turned[0x112] = 6
    frames = [Image.frombytes("RGBA", SIDES, draw.randbytes(4 * size)) for _ in range(3)]
    many: dict[str, Any] = {"save_all": True, "append_images": frames}
    palette = colours.convert("RGB").quantize(16)
    made = [
        *((colours.convert(mode), "PNG", {}) for mode in ("RGB", "RGBA", "L", "LA", "1")),
        (palette, "PNG", {"transparency": bytes(range(0, 256, 16))}),
        (palette, "PNG", {"transparency": 3}),
        (Image.frombytes("I;16", SIDES, draw.randbytes(2 * size)), "PNG", {}),
        (colours, "PNG", {"exif": turned, "icc_profile": draw.randbytes(300)}),
        (colours, "PNG", many),
        *((colours.convert(mode), "JPEG", {}) for mode in ("RGB", "L", "CMYK")),
        (colours.convert("RGB"), "JPEG", {"progressive": True, "exif": turned, "icc_profile": draw.randbytes(300)}),
        (colours.convert("RGB"), "JPEG", {"quality": 5, "subsampling": 2, "comment": draw.randbytes(99)}),
        (colours, "WEBP", {}),
        (colours, "WEBP", {"lossless": True, "exif": turned}),
        (colours.convert("RGB"), "WEBP", {"quality": 10}),
        (colours, "WEBP", many),
        (palette, "GIF", {"transparency": 3}),
        (palette, "GIF", {"save_all": True, "append_images": [each.convert("RGB").quantize(16) for each in frames]}),
        (colours.convert("RGB"), "BMP", {}),
        (palette, "BMP", {}),
        (colours.convert("1"), "BMP", {}),
    ]
    return tuple(_saved(image, kind, options) for image, kind, options in made)


def _saved(image: Any, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def mutate_picture(data: bytes, draw: random.Random) -> bytes:
    """Return the file of a picture with faults."""
    if data.startswith(b"\x89PNG") and draw.random() < 0.7:
        return _with_chunks(data, draw)
    if draw.random() < 0.5:
        return _with_number(data, draw, 64 if draw.random() < 0.6 else len(data))
    return mutate_bytes(data, draw)


def _with_number(data: bytes, draw: random.Random, most: int) -> bytes:
    """Write an odd number over one to four places, of a header or of all that is there."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        order, (letter, size) = draw.choice("<>"), draw.choice((("B", 1), ("H", 2), ("I", 4)))
        place = draw.randrange(min(most, len(data)))
        number = draw.choice(ODD_NUMBERS) & ((1 << 8 * size) - 1)
        data = data[:place] + struct.pack(f"{order}{letter}", number) + data[place + size :]
    return data


def _with_chunks(data: bytes, draw: random.Random) -> bytes:
    """Change, repeat, move or leave out chunks of a PNG, whose checksums are right."""
    chunks, place = [], 8
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    for _ in range(draw.choice((1, 1, 2, 3))):
        index = draw.randrange(len(chunks))
        name, content = chunks[index]
        match draw.randrange(7):
            case 0:
                chunks[index] = name, _with_number(content, draw, len(content)) if content else b"\x00"
            case 1:
                chunks[index] = name, mutate_bytes(content, draw)
            case 2 if name == b"IDAT":
                rows = draw.randbytes(SIDES[1] * (SIDES[0] * draw.choice((1, 3, 4)) + 1))
                many, more = draw.choice((0, 1, 2, 50)), draw.choice((0, 1, 999))
                chunks[index] = name, zlib.compress(rows * many + rows[:more])
            case 3:
                chunks.insert(draw.randrange(len(chunks) + 1), (name, content))
            case 4 if len(chunks) > 1:
                del chunks[index]
            case 5:
                long = zlib.compress(bytes(draw.choice((0, 1 << 10, 1 << 24))))
                filled = (b"", b"a\x00\x00" + long, draw.randbytes(30), b"II*\x00\x08\x00\x00\x00" + long[:200])
                chunks.insert(draw.randrange(len(chunks) + 1), (draw.choice(MORE), draw.choice(filled)))
            case _:
                size = struct.pack(">II", *(draw.choice((*ODD_NUMBERS, *SIDES, 9000)) for _ in range(2)))
                kinds = draw.choice((content[8:], bytes(draw.choice((1, 2, 3, 4, 6, 8, 16)) for _ in range(5))))
                chunks = [(each, size + kinds if each == b"IHDR" else rest) for each, rest in chunks]
    return data[:8] + b"".join(
        struct.pack(">I", len(rest)) + each + rest + struct.pack(">I", zlib.crc32(each + rest)) for each, rest in chunks
    )
