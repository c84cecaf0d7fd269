"""Write what a bundle has beside its graphs: the tokenizer, the configs of clients, and the model card."""

import json
import shutil
from pathlib import Path
from typing import Any

from edgeformer.client_files.genai import genai_config, runs_in_genai
from edgeformer.client_files.genai_pictures import PROCESSOR, processor_file
from edgeformer.client_files.model_card import model_card
from edgeformer.client_files.transformers_js import with_transformers_js_config
from edgeformer.documents import schema
from edgeformer.documents.json_document import read_object
from edgeformer.manifest.deployment import MORE_TEMPLATES, Deployment
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.pictures.grid import GridProcessor

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files in which Hugging Face keeps the processors of pictures and of sound."""


def copy_files(deployment: Deployment, source: Path | None, folder: Path, processors: bool = False) -> None:
    """Copy the files of a model's folder, if there is one, that the deployment has a use for, and named templates.

    processors: whether the model reads pictures or sound, so that clients look for what prepares these.
    """
    if source is None:
        return
    for name in (*deployment.copied_files, *(PROCESSOR_FILES if processors else ())):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if processors:
        _name_processor(folder)
    for path in sorted((source / MORE_TEMPLATES).glob("*.jinja")):
        (folder / MORE_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(path, folder / MORE_TEMPLATES / path.name)


def _name_processor(folder: Path) -> None:
    """Say in preprocessor_config.json which class prepares prompts and pictures, for transformers.js looks there alone.

    transformers 5 writes both processors into processor_config.json.
    """
    of_pictures, of_both = (read_object(folder / name) if (folder / name).is_file() else {} for name in PROCESSOR_FILES)
    named = {key: of_both[key] for key in ("processor_class",) if key in of_both}
    content = named | (of_pictures or of_both.get("image_processor", {}))
    if named and content != of_pictures:
        _write_json(folder / PROCESSOR_FILES[0], content)


def lower_case(path: Path) -> None:
    """Make a tokenizer.json lower the case of texts first, as sentence-transformers does, unless it does already."""
    if not path.is_file():
        return
    content = read_object(path)
    normalizer = content.get("normalizer")
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    if not any(step and step["type"] == "Lowercase" for step in steps):
        steps = [{"type": "Lowercase"}, *filter(None, steps)]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        _write_json(path, content)


def write_files(
    folder: Path, deployment: Deployment, hf_config: dict[str, Any] | None, manifest: Manifest, parity: str
) -> None:
    """Write the configs of the deployment's clients, and the model card. parity: its paragraph on verification."""
    # A module of another library is built of its config when the bundle is verified.
    read = "transformers.js" in deployment.clients or manifest.provenance.backend is not None
    if hf_config is not None and read:
        _write_json(folder / "config.json", with_transformers_js_config(hf_config, manifest))
    if "onnxruntime-genai" in deployment.clients and runs_in_genai(manifest):
        _write_json(folder / "genai_config.json", genai_config(manifest, hf_config))
        if "embedding" in manifest.graphs and isinstance(manifest.pictures, GridProcessor):
            _write_json(folder / PROCESSOR, processor_file(manifest.pictures))
    (folder / "README.md").write_text(model_card(manifest, parity, folder), encoding="utf-8")


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(schema.to_json(data), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
