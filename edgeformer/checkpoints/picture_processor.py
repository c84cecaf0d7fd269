"""Read the image processor of a checkpoint, preprocessor_config.json: every field is used, known to change nothing, or
refused.

Source: transformers/image_processing_backends.py (PilBackend), transformers/models/*/image_processing_pil_*.py.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.pictures import (
    CHANNELS,
    AnyResolutionProcessor,
    AspectTilesProcessor,
    FixedSizeProcessor,
    GridProcessor,
    PatchTilesProcessor,
    PictureProcessor,
    PictureSize,
    Resample,
    Resize,
    TilesProcessor,
)

FILE_NAME = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"
"""The file that transformers 5 writes for models of several modalities; it has the image processor in a field."""
WHOLE = "image_processor"
"""That field."""

STANDARD = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP_NORMALIZATION = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Filters by Pillow's numbers."""

COMMON = {
    "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False,
    "do_convert_rgb": False, "default_to_square": True,
}  # fmt: skip
"""Defaults of the processors below, unless they have others."""

_CLIP = {
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "resample": 3, "do_center_crop": True,
    "do_convert_rgb": True, "default_to_square": False, **CLIP_NORMALIZATION,
}  # fmt: skip
PROCESSORS: dict[str, Mapping[str, Any]] = {
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2, **STANDARD},
    "DeiT": {
        "size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "resample": 3,
        "do_center_crop": True, **STANDARD,
    },
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Llava": _CLIP,
    "Gemma3": {"size": {"height": 224, "width": 224}, "resample": 2, "do_convert_rgb": True, **STANDARD},
    "Siglip": {
        "size": {"height": 224, "width": 224}, "resample": 3, "do_convert_rgb": True, "default_to_square": False,
        **STANDARD,
    },
}  # fmt: skip
"""Defaults of transformers' classes for absent fields, by the beginning of their names."""

PAN_AND_SCAN = "do_pan_and_scan"
"""Field of Gemma 3's processor by which pictures are cut, too; others say how."""
COUNT = "image_seq_length"
"""Field that says how many states a picture becomes, of a class that knows its model."""
OTHERS: dict[str, tuple[str, ...]] = {
    "Gemma3": (
        COUNT, PAN_AND_SCAN, "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    ),
    "Siglip": (COUNT,),
}  # fmt: skip
"""Further fields of some classes."""

_TILES = {
    "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}, "resample": 1, "do_convert_rgb": True,
    "do_image_splitting": True, **STANDARD,
}  # fmt: skip
TILES: dict[str, Mapping[str, Any]] = {"Idefics3": _TILES, "SmolVLM": _TILES}
"""Defaults of the classes that cut pictures into tiles. All their pictures have one size, which is not padded."""
TILES_WITHOUT_EFFECT = ("do_pad", "return_row_col_info", "video_sampling")
"""Fields of these that change nothing for pictures."""

GRIDS: dict[str, Mapping[str, Any]] = {
    "Qwen2VL": {
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "resample": 3, "do_convert_rgb": True,
        "default_to_square": False, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, **CLIP_NORMALIZATION,
    },
}  # fmt: skip
"""Defaults of the classes that keep the aspect of pictures and cut them into patches."""
ASPECT_TILES: dict[str, Mapping[str, Any]] = {
    "GotOcr2": {
        "size": {"height": 384, "width": 384}, "resample": 3, "do_convert_rgb": True, "crop_to_patches": False,
        "min_patches": 1, "max_patches": 12, **CLIP_NORMALIZATION,
    },
}  # fmt: skip
"""Defaults of the class that cuts pictures into a grid of their aspect."""

_ANY_RESOLUTION = {
    "resample": 3, "do_convert_rgb": True, "default_to_square": False, "do_pad": True, "patches": None,
    "max_tiles": None, "squares": False, "grids_of_model": None, **CLIP_NORMALIZATION,
}  # fmt: skip
ANY_RESOLUTION: dict[str, Mapping[str, Any]] = {
    "LlavaNext": {
        **_ANY_RESOLUTION, "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
        "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    },
    "LlavaOnevision": {
        **_ANY_RESOLUTION, "size": {"height": 384, "width": 384}, "crop_size": None,
        "image_grid_pinpoints": [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)],
    },
}  # fmt: skip
"""Defaults of the classes that fit pictures into grids of tiles; the model's config says what has none."""

PATCH_TILES: dict[str, Mapping[str, Any]] = {
    "Lfm2Vl": {
        "resample": 2, "downsample_factor": 2, "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10,
        "use_thumbnail": True, "min_image_tokens": 64, "max_image_tokens": 256, "encoder_patch_size": 16,
        "tile_size": 512, "max_pixels_tolerance": 2.0, "do_pad": True, **STANDARD,
    },
}  # fmt: skip
"""Defaults of the class that cuts pictures of any size into tiles and patches."""
PATCH_TILES_WITHOUT_EFFECT = ("size", "return_row_col_info", "max_num_patches")
"""Fields of it that change nothing: patches are padded for batches of pictures, and the sizes are those of tiles."""

WITHOUT_EFFECT = (
    "_valid_processor_keys", "feature_extractor_type", "image_processor_type", "processor_class", "data_format",
    "input_data_format", "return_tensors", "device", "disable_grouping", "auto_map", "transformers_version",
)  # fmt: skip
"""Fields of bookkeeping, and of how transformers returns tensors; it always computes [3, height, width]."""


def read_picture_processor(folder: Path, said: Mapping[str, Any] = MappingProxyType({})) -> PictureProcessor:
    """Return the image processor of a checkpoint's folder.

    said: fields that the model's processor of texts and pictures gives to it, whatever the file has. Raises ConfigError
    where there is none, or one that edgeformer does not have, and for unknown fields.
    """
    name, data = _find(folder)
    try:
        return _read(name, {**data, **said})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is not one of an image processor: a field of it has a value of the wrong kind "
            f"({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _find(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the contents of the file that describes the image processor."""
    if (folder / FILE_NAME).is_file():
        return FILE_NAME, read_object(folder / FILE_NAME)
    if (folder / PROCESSOR_FILE).is_file():
        whole = read_object(folder / PROCESSOR_FILE)
        if isinstance(whole.get(WHOLE), dict):
            return PROCESSOR_FILE, whole[WHOLE]
    raise ConfigError(
        f"{folder.name} has no {FILE_NAME}, so it is not known how the model sees a picture: at which size, and how "
        "its colours are scaled. Put the one that it was trained with beside its config.json."
    )


def _read(name: str, data: dict[str, Any]) -> PictureProcessor:
    kind = _kind(name, data)
    if kind in GRIDS:
        return _read_grid(name, _known_fields(name, data, GRIDS[kind], ("min_pixels", "max_pixels")))
    if kind in TILES:
        return _read_tiles(name, _known_fields(name, data, TILES[kind], TILES_WITHOUT_EFFECT))
    if kind in ASPECT_TILES:
        return _read_aspect_tiles(name, _known_fields(name, data, ASPECT_TILES[kind], ()))
    if kind in ANY_RESOLUTION:
        return _read_any_resolution(name, _known_fields(name, data, ANY_RESOLUTION[kind], ()))
    if kind in PATCH_TILES:
        return _read_patch_tiles(name, _known_fields(name, data, PATCH_TILES[kind], PATCH_TILES_WITHOUT_EFFECT))
    others = ("size", "crop_size", "do_pad", *OTHERS.get(kind, ()))
    fields = _known_fields(name, data, PROCESSORS[kind], others)
    if fields.get(PAN_AND_SCAN):
        raise ConfigError(f"{name} has {PAN_AND_SCAN} = true, and edgeformer does not cut pictures for Gemma 3.")
    return _read_fixed_size(name, fields)


def _known_fields(
    name: str, data: dict[str, Any], defaults: Mapping[str, Any], others: tuple[str, ...]
) -> dict[str, Any]:
    """Return all fields with their values. Raises ConfigError for unknown ones. others: that have no default."""
    fields = {**COMMON, **defaults}
    known = {*fields, *others, *WITHOUT_EFFECT}
    # A field that is null has its default, as in transformers.
    given = {field: value for field, value in data.items() if value is not None}
    unknown = sorted(given.keys() - known)
    if unknown:
        listed = ", ".join(f"{field} = {shown(given[field], 200)}" for field in unknown)
        raise ConfigError(
            f"{name} has fields that edgeformer does not know: {listed}. They may change what the model sees, so "
            "nothing was exported."
        )
    return fields | given


def _read_fixed_size(name: str, fields: Mapping[str, Any]) -> FixedSizeProcessor:
    if fields.get("do_pad"):
        raise ConfigError(f"{name} has do_pad = true, which edgeformer does not have for pictures of one size.")
    return FixedSizeProcessor(
        resize=_resize(name, fields) if fields["do_resize"] else None,
        crop=_square_or_both(name, "crop_size", fields["crop_size"]) if fields["do_center_crop"] else None,
        **_values(fields),
    )


def _read_tiles(name: str, fields: Mapping[str, Any]) -> TilesProcessor:
    if fields["do_center_crop"]:
        raise ConfigError(f"{name} has do_center_crop = true, which edgeformer does not have for pictures in tiles.")
    if fields["do_image_splitting"] and not fields["do_resize"]:
        raise ConfigError(f"{name} has do_resize = false, so that a picture could become any number of tiles.")
    return TilesProcessor(
        tile=_longest_edge(name, "max_image_size", fields["max_image_size"]),
        longest_edge=_longest_edge(name, "size", fields["size"]) if fields["do_resize"] else None,
        splits=bool(fields["do_image_splitting"]),
        resample=_resample(name, fields),
        **_values(fields),
    )


def _read_grid(name: str, fields: Mapping[str, Any]) -> GridProcessor:
    for field, value in (("do_resize", True), ("do_center_crop", False)):
        if bool(fields[field]) != value:
            raise ConfigError(
                f"{name} has {field} = {shown(fields[field])}, which edgeformer does not have for patches."
            )
    size = {"shortest_edge": fields.get("min_pixels"), "longest_edge": fields.get("max_pixels")}
    size = fields["size"] | {edge: pixels for edge, pixels in size.items() if pixels is not None}
    # Older files have min_pixels and max_pixels in the size, which transformers does not read.
    least, most = (size.pop(edge, None) for edge in ("shortest_edge", "longest_edge"))
    if least is None or most is None or size.keys() - {"min_pixels", "max_pixels"}:
        raise ConfigError(f"{name} has size = {shown(fields['size'])}; it must have shortest_edge and longest_edge.")
    return GridProcessor(
        patch=fields["patch_size"],
        square=fields["merge_size"],
        frames=fields["temporal_patch_size"],
        min_pixels=least,
        max_pixels=most,
        resample=_resample(name, fields),
        **_values(fields),
    )


def _read_aspect_tiles(name: str, fields: Mapping[str, Any]) -> AspectTilesProcessor | FixedSizeProcessor:
    if not fields["crop_to_patches"]:
        return _read_fixed_size(name, fields)
    if fields["do_center_crop"] or not fields["do_resize"]:
        raise ConfigError(f"{name} has do_center_crop = true or do_resize = false beside crop_to_patches = true.")
    return AspectTilesProcessor(
        tile=_square_or_both(name, "size", fields["size"]),
        min_tiles=fields["min_patches"],
        max_tiles=fields["max_patches"],
        resample=_resample(name, fields),
        **_values(fields),
    )


def _read_any_resolution(name: str, fields: Mapping[str, Any]) -> AnyResolutionProcessor:
    size, pinpoints = fields["size"], fields["image_grid_pinpoints"]
    sides = set(size.values()) if size.keys() in ({"shortest_edge"}, {"height", "width"}) else set()
    if fields["do_center_crop"] or fields["crop_size"] is not None:
        crop = _square_or_both(name, "crop_size", fields["crop_size"])
        sides |= {crop.height, crop.width}
    if len(sides) != 1 or not fields["do_resize"]:
        raise ConfigError(f"{name} has size = {shown(size)}; it must be one square, that of crop_size, and do_resize.")
    [tile] = sides
    if any(side % tile for pinpoint in pinpoints for side in pinpoint):
        raise ConfigError(f"{name} has image_grid_pinpoints that are not made of tiles of {tile} × {tile} pixels.")
    if fields["grids_of_model"] not in (None, pinpoints):
        raise ConfigError(f"{name} has other image_grid_pinpoints than config.json.")
    return AnyResolutionProcessor(
        tile=tile,
        patches=fields["patches"] or 1,
        grids=tuple((height // tile, width // tile) for height, width in pinpoints),
        max_tiles=fields["max_tiles"],
        squares=fields["squares"],
        resample=_resample(name, fields),
        **_values(fields),
    )


def _read_patch_tiles(name: str, fields: Mapping[str, Any]) -> PatchTilesProcessor:
    needed = {"use_thumbnail": True, "do_pad": True, "do_center_crop": False}
    wrong = [f"{field} = {shown(fields[field])}" for field, value in needed.items() if bool(fields[field]) != value]
    if wrong:
        raise ConfigError(f"{name} has {wrong[0]}, which edgeformer does not have for pictures in tiles of patches.")
    splits = bool(fields["do_image_splitting"])
    return PatchTilesProcessor(
        patch=fields["encoder_patch_size"],
        square=fields["downsample_factor"],
        tile=fields["tile_size"],
        min_tiles=fields["min_tiles"] if splits else 1,
        max_tiles=fields["max_tiles"] if splits else 1,
        min_tokens=fields["min_image_tokens"],
        max_tokens=fields["max_image_tokens"],
        tolerance=fields["max_pixels_tolerance"],
        resample=_resample(name, fields),
        **_values(fields),
    )


def _longest_edge(name: str, field: str, size: Any) -> int:
    if not isinstance(size, dict) or size.keys() != {"longest_edge"}:
        raise ConfigError(f"{name} has {field} = {shown(size)}; it must have longest_edge, and nothing else.")
    edge: int = size["longest_edge"]
    return edge


def _resample(name: str, fields: Mapping[str, Any]) -> Resample:
    number = fields["resample"]
    if number not in RESAMPLE:
        raise ConfigError(f"{name} has resample = {shown(number)}; it must be one of Pillow's filters, 0 to 5.")
    return RESAMPLE[number]


def _values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all processors do to values."""
    normalizes = bool(fields["do_normalize"])
    return {
        "scale": float(fields["rescale_factor"]) if fields["do_rescale"] else None,
        "mean": _per_channel(fields["image_mean"]) if normalizes else None,
        "std": _per_channel(fields["image_std"]) if normalizes else None,
        "white_background": bool(fields["do_convert_rgb"]),
    }


def _kind(name: str, data: Mapping[str, Any]) -> str:
    """Return the beginning of the name of the class that a file names, as of CLIPFeatureExtractor."""
    kind = data.get("image_processor_type") or data.get("feature_extractor_type")
    stem = str(kind).removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
    stem = stem.removesuffix("FeatureExtractor")
    supported = (*PROCESSORS, *GRIDS, *TILES, *ASPECT_TILES, *ANY_RESOLUTION, *PATCH_TILES)
    if stem not in supported:
        known = ", ".join(f"{each}ImageProcessor" for each in supported)
        raise ConfigError(f"{name} has image_processor_type = {shown(kind)}; supported: {known}.")
    return stem


def _resize(name: str, fields: Mapping[str, Any]) -> Resize:
    size, resample = fields["size"], _resample(name, fields)
    if isinstance(size, int) and not fields["default_to_square"]:
        size = {"shortest_edge": size}
    if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
        return Resize(shortest_edge=size["shortest_edge"], resample=resample)
    return Resize(size=_square_or_both(name, "size", size), resample=resample)


def _square_or_both(name: str, field: str, size: Any) -> PictureSize:
    """Return a size that is a number, a list of height and width, or an object of both."""
    if isinstance(size, int):
        return PictureSize(height=size, width=size)
    if isinstance(size, list) and len(size) == 2:
        return PictureSize(height=size[0], width=size[1])
    if not isinstance(size, dict) or size.keys() != {"height", "width"}:
        raise ConfigError(
            f"{name} has {field} = {shown(size)}; it must be a number, or have height and width"
            f"{', or shortest_edge' if field == 'size' else ''}."
        )
    return PictureSize(height=size["height"], width=size["width"])


def _per_channel(value: Any) -> tuple[float, ...]:
    """Return a number for each channel of a list, or of one number for all."""
    return tuple(float(each) for each in (value if isinstance(value, list) else [value] * CHANNELS))
