"""A folder as a model has it, made of a GGUF file: config.json, generation_config.json, and a link to the file."""

import json
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from edgeformer.checkpoints.gguf.config_json import read_config_json, read_generation_config
from edgeformer.checkpoints.gguf.gguf_file import SPLIT, SUFFIX, open_gguf
from edgeformer.errors import ConfigError

BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip
"""Files of a folder with one GGUF that replace what would be made of its metadata."""


class UnpackedGguf:
    """A temporary folder with the files of a model, which is removed when this object is gone.

    folder: the folder. file: the opened GGUF file. beside: a folder whose tokenizer and generation files replace those
    that are made of the metadata. Raises ConfigError and WeightsError for files that are not read.
    """

    def __init__(self, path: Path, beside: Path | None = None):
        file = self.file = open_gguf(path)
        files = {
            "config.json": read_config_json(file), "generation_config.json": read_generation_config(file),
        }  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="edgeformer-gguf-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        for name, content in files.items():
            (self.folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
        for each in file.paths:
            match = SPLIT.fullmatch(each.name)
            numbered = "" if match is None else f"-{match[2]}-of-{match[3]}"
            os.symlink(each.resolve(), self.folder / f"model{numbered}{SUFFIX}")
        for name in BESIDE:
            if beside is not None and (beside / name).is_file():
                shutil.copy(beside / name, self.folder / name)


def sole_gguf(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that has no other weights, None where it has none.

    Of the files of a split model it is the first, and of pictures' projectors (mmproj) none is meant. Raises
    ConfigError for a folder with several models.
    """
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return None
    found = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if "mmproj" not in path.name.lower()]
    models = [path for path in found if (match := SPLIT.fullmatch(path.name)) is None or int(match[2]) == 1]
    if len(models) > 1:
        raise ConfigError(
            f"{folder} has {len(models)} GGUF files ({', '.join(path.name for path in models[:4])}). Give one of them: "
            f"--model {models[0]}"
        )
    return next(iter(models), None)
