"""Compare the pixel values of a bundle with those of transformers' own image processor, before a model is exported.

The graph is verified from pixel values on, so that a field of preprocessor_config.json that is read wrong would pass
every check. transformers' `from_pretrained` is the other reader of that file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeformer.contract.tensors import PATCH_MASK
from edgeformer.errors import ExportError, shown
from edgeformer.export.importers.pictures.library_processor import processor_class
from edgeformer.manifest.pictures.processor import PictureProcessor
from edgeformer.runtime.media.pictures.processors import new_processor

SHAPES = ((61, 97, 3), (97, 61, 3))
"""Height, width and channels of the pictures: a wide and a tall one, so that swapped sides show."""

VALUES = "pixel_values"

LEVELS = 2
"""Levels of 255 that values may differ by. They are the same bits with Pillow 13; earlier versions differ by one."""


def compare_pictures(folder: Path, processor: PictureProcessor) -> tuple[str, ...]:
    """Return why nothing was compared, as a warning; nothing where both processors agree.

    folder: of the checkpoint. processor: what edgeformer read there. Raises ExportError where pixel values differ.
    """
    from transformers import AutoImageProcessor

    try:
        theirs = AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True)
        options = _said_to_it(folder, processor)
    except Exception as error:  # of any class: what an image processor lacks shows anywhere in its constructor
        reason = shown(str(error), 200)
        return (f"transformers cannot read the image processor, so its pixel values were not compared: {reason}.",)
    ours, rng = new_processor(processor), np.random.default_rng(0)
    level = (1.0 if processor.scale is None else processor.scale) / min(processor.std or (1.0,))
    for shape in SHAPES:
        picture = rng.integers(0, 256, shape, np.uint8)
        found = theirs(images=[picture], return_tensors="np", **options)
        made = ours.for_library(ours.values(picture), ours.patch_grid(*shape[:2]))
        mine, expected = _values(made, made), _values(found, made)
        difference = np.inf if mine.shape != expected.shape else float(np.abs(mine - expected).max())
        if not all(np.array_equal(made[name], found[name]) for name in made.keys() - {VALUES, PATCH_MASK}):
            difference = np.inf
        if not difference <= LEVELS * level:
            raise ExportError(
                f"edgeformer does not make of a picture what {type(theirs).__name__} of transformers makes of it by "
                f"the same files: values {mine.shape} and {expected.shape} differ "
                f"by {difference:.1e}, and one level of a pixel is {level:.1e}. Nothing was exported: please report it "
                "with the model's preprocessor_config.json."
            )
    return ()


def _values(found: Mapping[str, Any], made: Mapping[str, Any]) -> Any:
    """Return pixel values of tiles, which have an axis of their own in transformers, or patches that do not pad."""
    values = np.asarray(found[VALUES])
    if PATCH_MASK in made:
        return values[np.asarray(found[PATCH_MASK], bool)]
    return values.reshape(-1, *values.shape[1 + values.ndim - np.ndim(made[VALUES]) :])


def _said_to_it(folder: Path, processor: PictureProcessor) -> dict[str, Any]:
    """Return the options that transformers' processor of texts and pictures gives to that of pictures."""
    options = getattr(processor_class(folder), "images_kwargs", {})
    said = dict(options) if isinstance(options, Mapping) else {}
    return {name: value for name, value in said.items() if name != "return_tensors"} | processor.call_options
