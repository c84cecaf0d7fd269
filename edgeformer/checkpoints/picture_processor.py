"""Read the image processor of a checkpoint, preprocessor_config.json: every field is used, known to change nothing, or
refused.

Source: transformers/image_processing_backends.py (PilBackend), transformers/models/*/image_processing_pil_*.py.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeformer.documents.json_document import read_object
from edgeformer.documents.kinds import kinds_of
from edgeformer.errors import ConfigError, shown
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.manifest.pictures.processor_fields import LibraryClass, ProcessorFields

FILE_NAME = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"
"""The file that transformers 5 writes for models of several modalities; it has the image processor in a field."""
WHOLE = "image_processor"
"""That field."""

COMMON = {
    "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False,
    "do_convert_rgb": False, "default_to_square": True,
}  # fmt: skip
"""Defaults of all classes, unless they have others."""

KINDS: dict[str, type[PictureProcessor]] = {
    name: kind for kind in kinds_of("edgeformer.manifest.pictures", "PROCESSOR").values() for name in kind.CLASSES
}
"""The kinds of processors by the beginnings of the names of transformers' classes."""

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
    stem = _class_stem(name, data)
    kind = KINDS[stem]
    return kind.read(ProcessorFields(name, _known_fields(name, data, kind.CLASSES[stem])))


def _known_fields(name: str, data: dict[str, Any], of_class: LibraryClass) -> dict[str, Any]:
    """Return all fields with their values. Raises ConfigError for unknown ones."""
    fields = {**COMMON, **of_class.defaults}
    known = {*fields, *of_class.others, *WITHOUT_EFFECT}
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


def _class_stem(name: str, data: Mapping[str, Any]) -> str:
    """Return the beginning of the name of the class that a file names, as of CLIPFeatureExtractor."""
    kind = data.get("image_processor_type") or data.get("feature_extractor_type")
    stem = str(kind).removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
    stem = stem.removesuffix("FeatureExtractor")
    if stem not in KINDS:
        known = ", ".join(f"{each}ImageProcessor" for each in sorted(KINDS))
        raise ConfigError(f"{name} has image_processor_type = {shown(kind)}; supported: {known}.")
    return stem
