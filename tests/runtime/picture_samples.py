"""Pictures for tests: files of many sizes, modes, formats and orientations, made by a program."""

from io import BytesIO

import numpy as np
from PIL import Image

ORIENTATION = 0x0112
"""The tag of EXIF that says how a camera was held."""


def pixels(height, width, channels=3, seed=0):
    """Return a picture of large and small structures, uint8 [height, width, channels]."""
    random = np.random.default_rng((seed, height, width))
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 120 * np.sin(x / (3 + channel) + y / (7 - channel) + seed) for channel in range(channels)]
    noisy = np.stack(waves, -1) + random.normal(0, 12, (height, width, channels))
    return noisy.clip(0, 255).astype(np.uint8)


def image(height, width, mode="RGB", seed=0):
    """Return an image of Pillow of a mode."""
    match mode:
        case "RGB" | "L" | "RGBA" | "LA" | "CMYK" | "YCbCr":
            found = pixels(height, width, len(Image.new(mode, (1, 1)).getbands()), seed)
            return Image.frombytes(mode, (width, height), found.tobytes())
        case "1":
            return image(height, width, "L", seed).convert("1")
        case "P":
            return image(height, width, "RGB", seed).quantize(31)
        case "P transparent":
            palette = image(height, width, "RGB", seed).quantize(31)
            palette.info["transparency"] = 3
            return palette
        case "I;16":
            return Image.fromarray(pixels(height, width, 1, seed)[..., 0].astype(np.uint16) * 257)
    raise AssertionError(mode)


def encoded(picture, kind="PNG", **options):
    """Return the bytes of a file of an image."""
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(height, width, orientation, seed=0):
    """Return a JPEG with an EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image(height, width, "RGB", seed), "JPEG", exif=exif, quality=90)


def forty():
    """Return 41 pictures by name: bytes of files of sizes from 1 to 4,000 pixels."""
    sizes = [
        (1, 1), (1, 2), (2, 1), (1, 40), (40, 1), (3, 5), (15, 16), (16, 15), (31, 33), (64, 64), (97, 101), (224, 224),
        (223, 225), (256, 300), (300, 256), (480, 640), (1000, 30), (30, 1000), (701, 1203), (8, 4000), (4000, 8),
    ]  # fmt: skip
    files = {f"RGB {height} × {width}": encoded(image(height, width)) for height, width in sizes}
    files["RGB 3000 × 4000"] = encoded(image(3000, 4000), "JPEG", quality=85)
    for mode in ("1", "L", "P", "LA", "RGBA", "P transparent"):
        files[f"{mode} PNG"] = (
            encoded(image(61, 83, mode), transparency=3) if " " in mode else encoded(image(61, 83, mode))
        )
    files["L JPEG"] = encoded(image(61, 83, "L"), "JPEG")
    files["CMYK JPEG"] = encoded(image(61, 83, "CMYK"), "JPEG")
    files["RGBA WebP"] = encoded(image(61, 83, "RGBA"), "WEBP", lossless=True)
    files["GIF"] = encoded(image(61, 83, "P"), "GIF")
    files["BMP"] = encoded(image(61, 83), "BMP")
    files |= {f"JPEG turned {orientation}": turned(50, 90, orientation) for orientation in range(1, 9)}
    return files
