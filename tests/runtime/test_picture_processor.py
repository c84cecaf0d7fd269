"""Pictures become pixel values: the bits of transformers' Pillow backend, and one clear sentence for hostile ones."""

import hashlib
import json
import resource
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
import transformers
from picture_samples import encoded, forty, image, pixels, turned
from PIL import Image, ImageOps
from slow_rows import slow_after
from transformers.image_utils import load_image

from edgeformer.checkpoints.picture_processor import read_picture_processor
from edgeformer.documents import schema
from edgeformer.errors import ConfigError, MissingDependencyError, RequestError
from edgeformer.manifest.pictures.fixed_size import FixedSizeProcessor, Resize
from edgeformer.manifest.pictures.grid import GridProcessor
from edgeformer.manifest.pictures.processor_fields import PictureSize
from edgeformer.runtime.media.pictures import picture_files, resample
from edgeformer.runtime.media.pictures.picture_files import read_picture
from edgeformer.runtime.media.pictures.processors import new_processor, processor
from edgeformer.runtime.media.pictures.processors.fixed_size import FixedSize
from edgeformer.runtime.media.pictures.processors.grid import GridPatches
from edgeformer.runtime.media.pictures.processors.patch_budget import PatchBudget

PROCESSORS = {
    "vit": (transformers.ViTImageProcessorPil, {}),
    "vit small": (transformers.ViTImageProcessorPil, {"size": {"height": 30, "width": 20}, "resample": 3}),
    "vit lanczos": (transformers.ViTImageProcessorPil, {"size": 48, "resample": 1, "image_mean": [0.48, 0.45, 0.4]}),
    "deit": (transformers.DeiTImageProcessorPil, {}),
    "clip": (transformers.CLIPImageProcessorPil, {}),
    "clip odd": (
        transformers.CLIPImageProcessorPil,
        {"size": {"shortest_edge": 31}, "crop_size": {"height": 47, "width": 20}},
    ),
    "siglip": (transformers.SiglipImageProcessorPil, {}),
    "siglip plain": (
        transformers.SiglipImageProcessorPil,
        {"do_normalize": False, "do_rescale": False, "size": {"height": 32, "width": 32}},
    ),
    "dinov2": (transformers.BitImageProcessorPil, {"size": {"shortest_edge": 256}, "resample": 3}),
}  # fmt: skip

ONEVISION = transformers.LlavaOnevisionImageProcessorPil
GOT_OCR2 = transformers.GotOcr2ImageProcessorPil
SEVERAL = {
    "idefics3": (transformers.Idefics3ImageProcessorPil, {
        "size": {"longest_edge": 120}, "max_image_size": {"longest_edge": 40},
    }),
    "internvl": (GOT_OCR2, {"size": {"height": 40, "width": 40}, "crop_to_patches": True}),
    "internvl odd": (GOT_OCR2, {
        "size": {"height": 30, "width": 20}, "crop_to_patches": True, "min_patches": 2, "max_patches": 9, "resample": 2,
    }),
    "llava next": (transformers.LlavaNextImageProcessorPil, {
        "size": {"shortest_edge": 30}, "crop_size": {"height": 30, "width": 30},
        "image_grid_pinpoints": [[30, 90], [60, 30], [60, 60], [30, 150]],
    }),
    "onevision": (ONEVISION, {
        "size": {"height": 20, "width": 20},
        "image_grid_pinpoints": [[20 * rows, 20 * columns] for rows in range(1, 7) for columns in range(1, 7)],
    }),
}  # fmt: skip
"""Processors that make several pictures of one."""

SIGLIP2 = transformers.Siglip2ImageProcessorPil
OF_PATCHES = {
    "siglip2": {},
    "siglip2 few": {"max_num_patches": 7, "patch_size": 14, "resample": 3},
    "siglip2 plain": {"max_num_patches": 100, "patch_size": 5, "do_normalize": False},
}


@pytest.fixture(scope="module")
def pictures():
    return forty()


def saved(tmp_path, kind, options, **more):
    """Save a processor of transformers, and read it."""
    kind(**options).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    return read_picture_processor(tmp_path)


def theirs(kind, options, content):
    """Return what transformers computes: of processors that lay on white an upright image, else what it loads."""
    made = kind(**options)
    opened = Image.open(BytesIO(content))
    upright = ImageOps.exif_transpose(opened) if made.do_convert_rgb else load_image(opened)
    found = made(upright, return_tensors="np")["pixel_values"]
    return found if kind is GOT_OCR2 else found[0]


@pytest.mark.parametrize("name", OF_PATCHES)
def test_patches_of_a_budget_are_the_bits_of_transformers(tmp_path, pictures, name):
    """Patches, shapes and padding of SigLIP 2 of any resolution are those of transformers."""
    config = saved(tmp_path, SIGLIP2, OF_PATCHES[name])
    ours, made, seen = PatchBudget(config), SIGLIP2(**OF_PATCHES[name]), 0
    for label, content in pictures.items():
        if "3000" in label and name != "siglip2":
            continue  # a second of decoding each
        opened = Image.open(BytesIO(content))
        expected = made(load_image(opened), return_tensors="np")
        values = ours.pixel_values(content)
        found = ours.for_library(values.reshape(-1, values.shape[-1]), np.array([[1, *values.shape[:2]]]))
        assert {name: each.shape for name, each in expected.items()} == {
            name: each.shape for name, each in found.items()
        }
        assert all(np.array_equal(found[each], np.asarray(expected[each], found[each].dtype)) for each in found), label
        seen += 1
    assert seen >= 36


def test_a_line_of_20000_pixels_becomes_a_row_of_patches(tmp_path):
    config = saved(tmp_path, SIGLIP2, {})
    assert config.grid(1, 20_000) == (1, 256)
    assert config.grid(20_000, 1) == (256, 1)
    assert max(config.grid(height, 97)[0] * config.grid(height, 97)[1] for height in range(1, 4_000, 37)) <= 256


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixel_values_are_the_bits_of_transformers(tmp_path, pictures, name):
    kind, options = PROCESSORS[name]
    config = saved(tmp_path, kind, options)
    assert schema.from_json(FixedSizeProcessor, json.loads(json.dumps(schema.to_json(config)))) == config
    ours, seen = FixedSize(config), 0
    for label, content in pictures.items():
        if "3000" in label and name not in ("vit", "clip"):
            continue  # a second of decoding each
        if config.resize.shortest_edge and "4000" in label and "8" in label:
            continue  # sides of 112,000 pixels, which are refused
        values, expected = ours.pixel_values(content), theirs(kind, options, content)
        assert values.dtype == np.float32
        assert np.array_equal(values, expected.astype(np.float32)), label
        seen += 1
    assert seen >= 36


GRIDS = {
    "qwen2_vl": {},
    "qwen3_vl": {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 1 << 20}, "image_mean": [0.5] * 3},
    "squares of nine": {
        "patch_size": 5,
        "merge_size": 3,
        "temporal_patch_size": 1,
        "min_pixels": 900,
        "max_pixels": 9000,
    },
}


@pytest.mark.parametrize("name", GRIDS)
def test_patches_are_the_bits_of_transformers(tmp_path, pictures, name):
    kind, options = transformers.Qwen2VLImageProcessorPil, GRIDS[name]
    config = saved(tmp_path, kind, options)
    assert schema.from_json(GridProcessor, json.loads(json.dumps(schema.to_json(config)))) == config
    ours, seen = GridPatches(config), 0
    for label, content in pictures.items():
        if "3000" in label and name != "qwen2_vl":
            continue  # a second of decoding each
        read = ours.read(content)
        height, width, _ = read.shape
        upright = ImageOps.exif_transpose(Image.open(BytesIO(content)))
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(RequestError, match="at most 200 times the shorter one"):
                ours.values(read)
            with pytest.raises(ValueError, match="aspect ratio"):
                kind(**options)(upright, return_tensors="np")
            continue
        expected = kind(**options)(upright, return_tensors="np")
        values = ours.values(read)
        assert values.dtype == np.float32
        assert np.array_equal(values, expected["pixel_values"].astype(np.float32)), label
        assert np.array_equal(ours.patch_grid(height, width), expected["image_grid_thw"]), label
        assert max(ours.grid(height, width)) <= config.most_rows
        seen += 1
    assert seen >= 36


PIXTRAL, PADDLE = transformers.PixtralImageProcessorPil, transformers.PaddleOCRVLImageProcessorPil
GEMMA4 = transformers.Gemma4ImageProcessorPil
OTHER_FORMS = {
    "gemma4": (GEMMA4, {}, None),
    "gemma4 small": (
        GEMMA4,
        {"patch_size": 5, "pooling_kernel_size": 2, "max_soft_tokens": 70, "resample": 2},
        None,
    ),
    "gemma4 large": (GEMMA4, {"patch_size": 4, "max_soft_tokens": 1120}, None),
    "pixtral": (PIXTRAL, {}, 1),
    "mistral3": (PIXTRAL, {"patch_size": {"height": 28, "width": 28}, "size": {"longest_edge": 300}}, 2),
    "pixtral of nine": (PIXTRAL, {"patch_size": {"height": 15, "width": 15}, "size": {"longest_edge": 77}}, 3),
    "paddleocr": (PADDLE, {}, None),
    "paddleocr of nine": (
        PADDLE,
        {"patch_size": 5, "merge_size": 3, "size": {"shortest_edge": 900, "longest_edge": 9000}, "resample": 2},
        None,
    ),
}
"""Processors whose values have another form in transformers, their options, and what their models say of squares."""


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_patches_in_squares_are_the_bits_of_transformers(tmp_path, pictures, name):
    """They are compared in the form that transformers returns: patches row by row, or the picture that they are of."""
    kind, options, square = OTHER_FORMS[name]
    config = saved(tmp_path, kind, options, **({} if square is None else {"square": square}))
    assert schema.from_json(type(config), json.loads(json.dumps(schema.to_json(config)))) == config
    ours, seen = new_processor(config), 0
    for label, content in pictures.items():
        if "3000" in label:
            continue  # a second of decoding
        read = ours.read(content)
        upright = ImageOps.exif_transpose(Image.open(BytesIO(content)))
        if max(read.shape[:2]) > 77 * min(read.shape[:2]) and (kind is PADDLE or 0 in config.resized(*read.shape[:2])):
            with pytest.raises(RequestError, match="nothing of it is left|at most 200 times the shorter one"):
                ours.values(read)
            with pytest.raises(ValueError, match="aspect ratio|height=0|width=0"):
                kind(**options)(upright, return_tensors="np")
            continue
        values = ours.values(read)
        grid = ours.patch_grid(*read.shape[:2])
        assert values.dtype == np.float32
        assert len(values) == grid.prod()
        expected = kind(**options)(upright, return_tensors="np")
        for field, value in ours.for_library(values, grid).items():
            assert np.array_equal(value, np.asarray(expected[field]).astype(value.dtype)), label
        seen += 1
    assert seen >= 36


def test_no_picture_has_more_rows_than_positions():
    """The sides of squares follow from the limits alone, also where rounding makes a picture longer."""
    config = GridProcessor(patch=4, square=2, frames=2, min_pixels=500, max_pixels=7000, resample="bicubic")
    sizes = [(short, short * aspect) for short in range(1, 60) for aspect in (1, 3, 20, 66, 133, 199, 200)]
    rows = [max(config.resized(height, width)) // config.side for height, width in sizes]
    assert max(rows) <= config.most_rows
    assert config.most_rows < 2 * max(rows)  # and the bound is no waste


@pytest.mark.parametrize("name", SEVERAL)
def test_tiles_are_the_bits_of_transformers(tmp_path, pictures, name):
    kind, options = SEVERAL[name]
    config = saved(tmp_path, kind, options)
    assert schema.from_json(type(config), json.loads(json.dumps(schema.to_json(config)))) == config
    ours, grids = new_processor(config), set()
    for label, content in pictures.items():
        if "3000" in label:
            continue  # a second of decoding
        read = ours.read(content)
        values = ours.values(read)
        expected = theirs(kind, options, content)
        assert values.dtype == np.float32
        assert np.array_equal(values, expected.reshape(-1, *expected.shape[-3:]).astype(np.float32)), label
        rows, columns = ours.grid(*read.shape[:2])
        assert config.kind == "any_resolution" or len(values) == rows * columns + 1
        grids.add((rows, columns))
    assert len(grids) >= 5


def test_squares_are_the_bits_of_transformers(tmp_path, pictures):
    """Pictures that are not alone in a prompt of LLaVA-OneVision."""
    kind, options = SEVERAL["onevision"]
    ours = new_processor(replace(saved(tmp_path, kind, options), squares=True)).among(2)
    for label, content in pictures.items():
        if "3000" in label:
            continue  # a second of decoding
        upright = ImageOps.exif_transpose(Image.open(BytesIO(content)))
        expected = kind(**options)([[upright, upright]], return_tensors="np")["pixel_values"][1]
        assert np.array_equal(ours.values(ours.read(content)), expected.astype(np.float32)), label


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_resizes_are_the_bits_of_torch(kind):
    """Resize pixels of 8 bits as torchvision does."""
    sizes = {
        (61, 97): (32, 64), (1, 1): (32, 32), (1, 40): (32, 320), (300, 256): (512, 512), (701, 1203): (512, 1024),
        (8, 400): (32, 400), (8192, 40): (20, 40), (30, 16384): (30, 1),
        (480, 640): (480, 320), (1000, 30): (512, 64), (50, 50): (49, 51),
    }  # fmt: skip
    differs = False
    for size, wanted in sizes.items():
        given = pixels(*size)
        planes = torch.from_numpy(given).permute(2, 0, 1)[None].contiguous()
        expected = torch.nn.functional.interpolate(planes, wanted, mode=kind, antialias=True)[0].permute(1, 2, 0)
        assert np.array_equal(resample.resize_as_torch(given, *wanted, kind), expected.numpy()), size
        differs |= not np.array_equal(resample.resize(given, *wanted, kind), expected.numpy())
    assert differs  # from Pillow's


PATCHES = {
    "default": ({}, "65226a93f248b86c899f5daffd02ac79f6b3bc7b6a7dc9dcf3cc4efd48814dbc"),
    "small": (
        {
            "encoder_patch_size": 5, "tile_size": 30, "min_image_tokens": 2, "max_image_tokens": 12, "max_tiles": 6,
            "image_mean": [0.1, 0.2, 0.3], "image_std": [0.9, 0.8, 0.7], "max_pixels_tolerance": 1.5,
        },
        "65ccc01d11d841f70095b46989aff21570db9a037f6b0a75dc6648be1bb5022b",
    ),
    "whole": (
        {
            "encoder_patch_size": 4, "tile_size": 24, "min_image_tokens": 4, "max_image_tokens": 9,
            "do_image_splitting": False, "downsample_factor": 3,
        },
        "6668bf999819ecb72e8d6950a99db658d8e5066cd5c13f164e1063656fd3fcfa",
    ),
}  # fmt: skip
"""Options of LFM2-VL's processor, and the SHA-256 of what transformers 5.23 makes of pictures, by torchvision 0.28.

transformers has that processor for torchvision only, which is not needed here: its patches were put in squares, without
their padding.
"""


@pytest.mark.parametrize("name", PATCHES)
def test_tiles_of_patches_are_the_bits_of_transformers(tmp_path, name):
    options, expected = PATCHES[name]
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": "Lfm2VlImageProcessor", **options}))
    config = read_picture_processor(tmp_path)
    assert schema.from_json(type(config), json.loads(json.dumps(schema.to_json(config)))) == config
    ours, digest = new_processor(config), hashlib.sha256()
    for height, width in [(1, 1), (3, 5), (31, 33), (64, 64), (97, 101), (300, 256), (480, 640), (30, 90), (901, 400)]:
        values = ours.values(np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8))
        assert len(values) == ours.patch_grid(height, width).prod(1).sum()
        digest.update(values.tobytes())
    assert digest.hexdigest() == expected
    with pytest.raises(RequestError, match="is too long for its width"):
        ours.values(np.zeros((2, 16000, 3), np.uint8))


BUDGETS = {
    "bicubic": ({"patch_size": 4, "max_soft_tokens": 70},
                "3923ff6dabf3aa41031af18a77a7b9e8bd032aadfb8502939409ef23b45746c1"),
    "bilinear": ({"patch_size": 5, "pooling_kernel_size": 2, "max_soft_tokens": 140, "resample": 2},
                 "f53767dbd7da13d101b52bd0f8e64d3239e4134d04bf1a6f00169cd388be24cd"),
}  # fmt: skip
"""Options of the processor of the unified Gemma 4, and the SHA-256 of what transformers 5.23 makes of pictures, by
torchvision 0.28: their patches and places, without their padding."""


@pytest.mark.parametrize("name", BUDGETS)
def test_patches_within_a_budget_are_the_bits_of_torchvision(tmp_path, name):
    options, expected = BUDGETS[name]
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_processor_type": "Gemma4UnifiedImageProcessor", **options}))
    ours, digest = new_processor(read_picture_processor(tmp_path)), hashlib.sha256()
    sizes = [(31, 33), (64, 64), (97, 101), (300, 256), (480, 640), (30, 90), (901, 400), (5, 300), (300, 5)]
    for height, width in sizes:
        values = ours.values(np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8))
        places = ours.for_library(values, ours.patch_grid(height, width))["image_position_ids"][0, : len(values)]
        digest.update(values.tobytes())
        digest.update(places.astype(np.int64).tobytes())
    assert digest.hexdigest() == expected


def test_there_are_forty_pictures(pictures):
    assert len(pictures) >= 40


def test_the_comparison_sees_wrong_numbers(tmp_path, pictures):
    """The negative control: mean and std swapped, colours as BGR, another filter, height for width, no EXIF."""
    kind, options = PROCESSORS["vit small"]
    config, content = saved(tmp_path, kind, options | {"image_mean": [0.4, 0.5, 0.6]}), pictures["RGB 97 × 101"]
    right = FixedSize(config).pixel_values(content)
    assert not np.array_equal(FixedSize(replace(config, mean=config.std, std=config.mean)).pixel_values(content), right)
    assert not np.array_equal(right[::-1], right)
    bilinear = Resize(size=config.size, resample="bilinear")
    assert not np.array_equal(FixedSize(replace(config, resize=bilinear)).pixel_values(content), right)
    assert FixedSize(replace(config, crop=PictureSize(height=20, width=30))).pixel_values(content).shape == (3, 20, 30)
    straight = FixedSize(config).pixel_values(Image.open(BytesIO(turned(50, 90, 6))).copy())
    assert np.array_equal(straight, FixedSize(config).pixel_values(turned(50, 90, 6)))
    assert not np.array_equal(straight, FixedSize(config).pixel_values(turned(50, 90, 1)))


def test_a_path_bytes_an_image_and_an_array_are_one_picture(tmp_path):
    content = encoded(image(20, 30))
    (tmp_path / "a.png").write_bytes(content)
    array = pixels(20, 30)
    given = [tmp_path / "a.png", str(tmp_path / "a.png"), content, Image.open(BytesIO(content)), array]
    assert all(np.array_equal(read_picture(each, white_background=True), array) for each in given)
    grey = array[..., 0]
    for each in (grey, grey[..., None]):
        assert np.array_equal(read_picture(each, white_background=True), np.repeat(grey[..., None], 3, 2))


def test_opacity_is_laid_on_white_as_pillow_does():
    levels = np.arange(256, dtype=np.uint8)
    array = np.empty((256, 256, 4), np.uint8)
    array[..., 0], array[..., 1], array[..., 2] = levels, levels[::-1], 77
    array[..., 3] = levels[:, None]
    given = Image.frombytes("RGBA", (256, 256), array.tobytes())
    white = Image.new("RGBA", given.size, (255, 255, 255, 255))
    expected = np.asarray(Image.alpha_composite(white, given).convert("RGB"))
    assert np.array_equal(read_picture(array, white_background=True), expected)
    assert np.array_equal(read_picture(given, white_background=True), expected)
    assert np.array_equal(read_picture(array, white_background=False), array[..., :3])


def test_sixteen_bits_keep_their_upper_eight():
    """transformers clips them: almost all of such a picture is white there."""
    grey = pixels(20, 30, 1)
    found = read_picture(encoded(image(20, 30, "I;16")), white_background=True)
    assert np.array_equal(found, np.repeat(grey, 3, 2))
    clipped = np.asarray(Image.open(BytesIO(encoded(image(20, 30, "I;16")))).convert("RGB"))
    assert (clipped == 255).mean() > 0.9


def test_the_first_frame_of_an_animation_is_read():
    frames = [image(10, 12, "RGB", seed) for seed in range(3)]
    content = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(read_picture(content, white_background=True), np.asarray(frames[0]))


def png_of_size(width, height):
    """Return a PNG that claims a size, and holds next to nothing."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


HOSTILE = {
    "bomb": (png_of_size(16000, 16000), "cannot be read as PNG: .*decompression bomb"),
    "large": (png_of_size(9000, 9000), "is 9,000 × 9,000 pixels, 81,000,000 in all; a picture may have 67,108,864"),
    "larger bomb": (png_of_size(60000, 60000), "cannot be read as PNG: .*pixels.*|is 60,000 × 60,000 pixels; a side"),
    "line": (png_of_size(1, 20000), "is 1 × 20,000 pixels; a side may have 16,384"),
    "cut off PNG": (encoded(image(90, 90))[:2000], "cannot be read as PNG: .*damaged or cut off"),
    "cut off JPEG": (encoded(image(90, 90), "JPEG")[:900], "cannot be read as JPEG: image file is truncated"),
    "cut off WebP": (encoded(image(90, 90), "WEBP")[:300], "cannot be read as WEBP"),
    "claims more": (png_of_size(500, 500), "cannot be read as PNG"),
    "no pixels": (png_of_size(0, 5), "cannot be read as PNG|it has none to see"),
    "nothing": (b"", "is not a picture of PNG, JPEG, WebP, GIF or BMP"),
    "text": (b"<svg></svg>", "is not a picture of PNG, JPEG, WebP, GIF or BMP"),
    "sound": (b"RIFF\0\0\0\0WAVEfmt ", "is not a picture of PNG, JPEG, WebP, GIF or BMP"),
    "TIFF": (encoded(image(9, 9), "TIFF"), "is not a picture of PNG, JPEG, WebP, GIF or BMP"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pictures_are_refused_in_one_sentence(name):
    content, said = HOSTILE[name]
    with pytest.raises(RequestError, match=said) as error:
        read_picture(content, white_background=True, name="picture 2")
    assert str(error.value).startswith("picture 2 ")
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_the_limit_of_bytes_is_checked_before_a_file_is_read(tmp_path, monkeypatch):
    file = tmp_path / "large.png"
    file.write_bytes(encoded(image(9, 9)))
    monkeypatch.setattr(picture_files, "MOST_BYTES", 10)
    monkeypatch.setattr(type(file), "read_bytes", None)
    with pytest.raises(RequestError, match="large.png has .* bytes; a picture may have 10"):
        read_picture(file, white_background=True)


def damaged_files(count):
    """Yield files of every kind with some bytes changed, half of them cut off at a random place: so many of seven."""
    random = np.random.default_rng(0)
    files = [encoded(image(14, 15, mode), kind) for mode, kind in (
        ("RGB", "PNG"), ("P", "PNG"), ("RGB", "JPEG"), ("RGBA", "WEBP"), ("P", "GIF"), ("RGB", "BMP"),
    )] + [turned(14, 15, 6)]  # fmt: skip
    for content in files:
        for number in range(count):
            damaged = bytearray(content)
            for place in random.integers(0, len(content), random.integers(1, 5)):
                damaged[place] = random.integers(0, 256)
            yield bytes(damaged if number % 2 else damaged[: random.integers(1, len(content) + 1)])


@pytest.mark.parametrize("count", [150, pytest.param(14_300, marks=pytest.mark.slow)])
def test_bytes_that_a_fault_has_changed_are_pictures_or_errors(count):
    """Thousands of damaged files: each is a picture or a RequestError of one line, and memory stays bounded."""
    before, said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, list[str]()
    for content in damaged_files(count):
        try:
            found = read_picture(content, white_background=True)
            assert found.dtype == np.uint8
            assert found.shape[2] == 3
        except RequestError as error:
            said.append(str(error))
    assert len(said) > 100 and all("\n" not in each and len(each) < 400 for each in said)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    # Pixels, and the pixels on white, of the largest picture that is decoded, with an opacity.
    assert grown <= 3 * 4 * picture_files.MOST_PIXELS


PEAK = """
import sys
from pathlib import Path
from PIL import Image
from edgeformer.runtime.media.pictures.picture_files import read_picture
read_picture(Image.new("RGBA", (2, 2)), white_background=True)  # imports all that there is to import
peak = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])  # of this process alone
before = peak()
read_picture(sys.argv[1], white_background=True)
print((peak() - before) * 1024)
"""


@pytest.mark.parametrize("mode", slow_after(2, ["RGBA", "P", "RGB", "LA"]))
def test_decoding_takes_some_bytes_for_each_pixel(tmp_path, mode):
    """A file of a few kilobytes is a picture of 16 million pixels, here turned by EXIF, and with opacity."""
    side, exif = 4096, Image.Exif()
    exif[0x112] = 6
    options = {"transparency": 0} if mode == "P" else {}
    Image.new(mode, (side, side)).save(tmp_path / "a.png", exif=exif, **options)
    assert (tmp_path / "a.png").stat().st_size < 1 << 19
    line = [sys.executable, "-c", PEAK, tmp_path / "a.png"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert 3 <= int(done.stdout) / side**2 <= 12


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((3, 4, 3), np.float32), r"an array float32 \[3, 4, 3\]; it must be uint8"),
        (np.zeros((3, 4, 5), np.uint8), r"an array uint8 \[3, 4, 5\]"),
        (np.zeros((0, 4, 3), np.uint8), "it has none to see"),
        (7, "is 7; it must be the path of a file"),
        ("nowhere.png", "'nowhere.png' cannot be read: No such file"),
        (Image.new("F", (3, 3)), "values of 32 bits"),
    ],
)
def test_what_is_no_picture_is_refused(given, said):
    with pytest.raises(RequestError, match=said):
        read_picture(given, white_background=True)


def test_without_pillow_arrays_are_read_and_files_name_the_extra(tmp_path, monkeypatch):
    config = saved(tmp_path, *PROCESSORS["vit small"])
    expected, content = FixedSize(config).pixel_values(pixels(50, 60)), encoded(image(9, 9))

    def require(module, extra):
        raise MissingDependencyError(f"{module} is not installed")

    monkeypatch.setattr(picture_files, "require", require)
    monkeypatch.setattr(processor, "find_spec", lambda name: None)
    assert np.array_equal(FixedSize(config).pixel_values(pixels(50, 60)), expected)
    with pytest.raises(
        RequestError, match=r"cannot be read without Pillow. Install it with: pip install 'edgeformer\[vision\]'"
    ):
        FixedSize(config).pixel_values(content)


def test_a_wall_of_pixels_is_refused(tmp_path):
    config = saved(tmp_path, *PROCESSORS["clip"])
    with pytest.raises(RequestError, match="the longer one would have 896,000, and may have 65,536"):
        FixedSize(config).pixel_values(np.zeros((1, 4000, 3), np.uint8))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"crop_pct": 0.9}, "fields that edgeformer does not know: crop_pct = 0.9"),
        ({"do_pad": True}, "has do_pad = true"),
        ({"resample": 9}, "resample = 9; it must be one of Pillow's filters"),
        ({"size": {"longest_edge": 9}}, "size = .*; it must be a number, or have height and width, or shortest_edge"),
        ({"size": {"height": 0, "width": 4}}, "PictureSize.height is 0"),
        ({"image_processor_type": "MllamaImageProcessor"}, "supported: BitImageProcessor, CLIPImageProcessor"),
        ({"image_mean": [0.5, 0.5]}, "FixedSizeProcessor.mean is .*; it must be a list of 3 numbers"),
        ({"image_std": "x"}, "a value of the wrong kind"),
    ],
)
def test_what_may_change_what_a_model_sees_is_refused(tmp_path, change, said):
    with pytest.raises(ConfigError, match=said):
        saved(tmp_path, *PROCESSORS["vit"], **change)


def test_null_is_absent_and_old_names_are_read(tmp_path):
    plain = saved(tmp_path, *PROCESSORS["clip"])
    again = saved(tmp_path, *PROCESSORS["clip"], resample=None, do_resize=None, crop_pct=None, size=224, crop_size=224)
    old = saved(tmp_path, *PROCESSORS["clip"], image_processor_type=None, feature_extractor_type="CLIPFeatureExtractor")
    assert plain == again == old
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text())})
    )
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_picture_processor(tmp_path) == plain
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(ConfigError, match="has no preprocessor_config.json, so it is not known how the model sees"):
        read_picture_processor(tmp_path)
