"""transformers' own processor of texts and pictures of a checkpoint, as far as its parts run here.

Some of its classes ask for torchvision, which is not needed for what they compute of texts.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from edgeformer.checkpoints.picture_processor import FILE_NAME, PROCESSOR_FILE, WHOLE, read_picture_processor
from edgeformer.documents.json_document import read_object
from edgeformer.export.importers.pictures.stand_in import StandIn, TilesStandIn
from edgeformer.runtime.media.pictures.processors import new_processor

TORCHVISION_ONLY: dict[str, Callable[[Any], StandIn]] = {
    "Gemma4UnifiedProcessor": StandIn, "Lfm2VlProcessor": TilesStandIn,
}  # fmt: skip
"""Stand-ins for image processors that transformers has for torchvision only, by the processors that ask them."""

WITH_PILLOW = {"PixtralProcessor": "pixtral"}
"""Processors that import the image processor of torchvision, and need no more of it than that of Pillow has, too."""

NOT_PROCESSOR_OPTIONS = ("auto_map", "chat_template", "feature_extractor", "processor_class", "video_processor")
"""Fields of processor_config.json that its class does not take, or that are for videos or sound."""


def library_processor(folder: Path) -> Any:
    """Return transformers' processor of a folder, with its Pillow backend, without what it has for videos and sound."""
    import transformers

    kind = processor_class(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    options = _fields(folder, PROCESSOR_FILE)
    options = {key: value for key, value in options.items() if key not in (WHOLE, "tokenizer", *NOT_PROCESSOR_OPTIONS)}
    with _without_others(kind) as others, _of_pictures(folder, kind) as pictures:
        return kind(image_processor=pictures, tokenizer=tokenizer, **others, **options)


def processor_class(folder: Path) -> Any:
    """Return the class of transformers' processor of texts and pictures that a folder names; None where it has none."""
    import transformers

    files = (PROCESSOR_FILE, FILE_NAME, "tokenizer_config.json")
    named = next(filter(None, (_fields(folder, file).get("processor_class") for file in files)), None)
    if named is None:
        names: Any = importlib.import_module("transformers.models.auto.processing_auto")
        named = names.PROCESSOR_MAPPING_NAMES.get(_fields(folder, "config.json").get("model_type"))
    if named not in WITH_PILLOW or find_spec("torchvision") is not None:
        return getattr(transformers, named or "", None)
    package = f"transformers.models.{WITH_PILLOW[named]}"
    pillow = importlib.import_module(f"{package}.image_processing_pil_{WITH_PILLOW[named]}")
    with patch.dict(sys.modules, {f"{package}.image_processing_{WITH_PILLOW[named]}": pillow}):
        return getattr(importlib.import_module(f"{package}.processing_{WITH_PILLOW[named]}"), named)


def _fields(folder: Path, name: str) -> dict[str, Any]:
    return read_object(folder / name) if (folder / name).is_file() else {}


@contextmanager
def _of_pictures(folder: Path, kind: Any) -> Iterator[Any]:
    """Yield transformers' image processor of a folder, with its Pillow backend; a stand-in where it needs torchvision.

    kind: what it is made for, which takes the stand-in for as long as the context is open.
    """
    import transformers

    if find_spec("torchvision") is None and kind.__name__ in TORCHVISION_ONLY:
        stand_in = TORCHVISION_ONLY[kind.__name__]
        with patch.object(kind, "check_argument_for_proper_class"):
            yield stand_in(new_processor(read_picture_processor(folder)))
        return
    yield transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True)


@contextmanager
def _without_others(kind: Any) -> Iterator[dict[str, Any]]:
    """Let a processor be made without those of videos and sound, and its number words; yield what it is made of."""
    others = [name for name in ("video_processor", "feature_extractor") if name in kind.get_attributes()]
    if not others:
        yield {}
        return
    module = importlib.import_module(kind.__module__)
    with patch.object(module, "num2words", str, create=True), patch.object(kind, "check_argument_for_proper_class"):
        yield {name: SimpleNamespace() for name in others}
