"""The files that are fuzzed: how a folder with one wrong file is made, and how it is opened."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reliability.command_lines import call, draw_line
from reliability.mutations import (
    mutate_bytes,
    mutate_document,
    mutate_graph,
    mutate_json,
    mutate_safetensors,
    mutate_template,
)
from reliability.pictures import mutate_picture, samples

PRESETS = ("tiny-llama", "tiny-embed", "tiny-translate")
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "edgeformer" / "presets"
REAL_CONFIGS = ROOT / "tests" / "families" / "real_configs"


@dataclass(frozen=True)
class Target:
    """A kind of file to spoil; `prepare(bundles, folder, draw)` makes a case's folder and returns what opens it."""

    name: str
    prepare: Callable[[Path, Path, random.Random], Callable[[], Any]]


def linked(source: Path, folder: Path) -> None:
    """Make a folder of the same files, which share their bytes; spoilt files replace the links."""
    for file in source.rglob("*"):
        if file.is_file():
            place = folder / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a bundle, and what its manifest says of it, so that more than sizes are tried."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    listing = folder / "edgeformer.json"
    if name != listing.name and listing.is_file():
        manifest = json.loads(listing.read_text())
        if name in manifest["files"]:
            entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest["files"][name] = entry
            listing.unlink()
            listing.write_text(json.dumps(manifest))


def use(folder: Path) -> None:
    """Open a bundle and run it, by whatever its task is."""
    from edgeformer.runtime import CausalLM, Encoder, Seq2SeqLM, load

    model = load(folder, provider="cpu", threads=1, kernels=False)
    match model:
        case Encoder():
            model.embed("a text")
        case CausalLM():
            model.generate("Once upon", max_new_tokens=2)
            if model.tokenizer is not None and model.tokenizer.has_chat_template:
                model.chat([{"role": "user", "content": "hello"}], max_new_tokens=2)
        case Seq2SeqLM():
            model.generate("ein Hund", max_new_tokens=2)


def look(folder: Path) -> None:
    """Say which clients load a bundle, and what it costs, as `check` and `info` do."""
    from edgeformer.check import check
    from edgeformer.cli.measure.info import info_command
    from edgeformer.cli.prove.check import check_command

    check(folder)
    for command in (check_command, info_command):
        try:
            command.main([str(folder), "--json"], standalone_mode=False)
        except SystemExit as verdict:
            if verdict.code not in (0, 1):  # `check` ends with 1 where a client does not load the bundle
                raise


def _bundle(draw: random.Random, bundles: Path, folder: Path) -> str:
    name = draw.choice([preset for preset in PRESETS if (bundles / preset).is_dir()])
    linked(bundles / name, folder)
    return name


def _manifest(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    _bundle(draw, bundles, folder)
    content = mutate_document((folder / "edgeformer.json").read_bytes(), draw)
    replace_file(folder, "edgeformer.json", content)
    return (lambda: use(folder)) if draw.random() < 0.7 else (lambda: look(folder))


def _graph(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    _bundle(draw, bundles, folder)
    graph = draw.choice(sorted(folder.glob("onnx/*.onnx")))
    replace_file(folder, graph.relative_to(folder).as_posix(), mutate_graph(graph.read_bytes(), draw))
    return (lambda: use(folder)) if draw.random() < 0.7 else (lambda: look(folder))


def _tokenizer(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    _bundle(draw, bundles, folder)
    name = draw.choice(("tokenizer.json", "tokenizer_config.json"))
    replace_file(folder, name, mutate_document((folder / name).read_bytes(), draw))
    return lambda: use(folder)


def _generation(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    from edgeformer.runtime import GenerationConfig

    linked(SOURCES / draw.choice(("tiny-llama", "tiny-translate")), folder)
    fields = {"num_beams": 2, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "do_sample": True, "min_length": 1,
              "bad_words_ids": [[3]], "forced_bos_token_id": 1, "repetition_penalty": 1.1}  # fmt: skip
    stored = json.loads((folder / "generation_config.json").read_bytes())
    chosen = {name: fields[name] for name in draw.sample(sorted(fields), 3)}
    content = mutate_document(json.dumps(stored | chosen).encode(), draw)
    replace_file(folder, "generation_config.json", content)
    if draw.random() < 0.5:
        return lambda: GenerationConfig.from_folder(folder)
    return lambda: plan(folder)


def _template(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    linked(bundles / "tiny-llama", folder)
    content = mutate_template((folder / "chat_template.jinja").read_bytes(), draw)
    replace_file(folder, "chat_template.jinja", content)
    from edgeformer.runtime.text.tokenizer import Tokenizer

    return lambda: Tokenizer(folder).encode_chat([{"role": "user", "content": "hello"}])


def _check(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    _bundle(draw, bundles, folder)
    names = [file.name for file in folder.glob("*.json")]
    name = draw.choice([*names, "genai_config.json", "config.json"])
    if not (folder / name).is_file():
        name = "config.json"
    replace_file(folder, name, mutate_document((folder / name).read_bytes(), draw))
    return lambda: look(folder)


@cache
def _configs() -> list[dict[str, Any]]:
    """Return config.json of presets and of well-known checkpoints of all families."""
    files = [*sorted(REAL_CONFIGS.glob("*.json")), *(SOURCES / name / "config.json" for name in PRESETS)]
    return [json.loads(file.read_text()) for file in files]


def plan(folder: Path) -> None:
    """Do what an export does before it reads weights: read the config, count, and lay out the model."""
    from edgeformer.checkpoints.source import open_source
    from edgeformer.export.plan import make_plan
    from edgeformer.manifest.accounting import account
    from edgeformer.models.model_spec import model_spec_of
    from edgeformer.options.export import ExportOptions

    source = open_source(folder)
    account(source.config)
    source.special_tokens()
    source.generation_defaults()
    make_plan(ExportOptions(), source.config)
    spec = model_spec_of(source.config)
    assert spec.graphs
    if account(source.config).parameters < 10**9:
        spec.parameter_shapes()


def _config(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    folder.mkdir(parents=True)
    config = draw.choice(_configs())
    content = mutate_json(config, draw) if draw.random() < 0.9 else mutate_bytes(json.dumps(config).encode(), draw)
    (folder / "config.json").write_bytes(content)
    return lambda: plan(folder)


def _weights(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    linked(SOURCES / draw.choice(PRESETS), folder)
    (folder / "preset.json").unlink()
    file = folder / "model.safetensors"
    if draw.random() < 0.5:
        spoilt = mutate_safetensors(file.read_bytes(), draw)
        file.unlink()
        file.write_bytes(spoilt)
    else:
        size = int.from_bytes(file.read_bytes()[:8], "little")
        names = json.loads(file.read_bytes()[8 : 8 + size]).keys() - {"__metadata__"}
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(sorted(names), file.name)}
        (folder / "model.safetensors.index.json").write_bytes(mutate_document(json.dumps(index).encode(), draw))

    def read() -> None:
        from edgeformer.checkpoints.source import open_source

        weights = open_source(folder).weights()
        for name in weights:
            weights[name]

    return read


def _modules(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    linked(SOURCES / "tiny-embed", folder)
    name = draw.choice(("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"))
    content = mutate_document((folder / name).read_bytes(), draw)
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    return lambda: plan(folder)


def _picture(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    folder.mkdir(parents=True)
    file = folder / "a.png"
    file.write_bytes(mutate_picture(draw.choice(samples()), draw))
    white = draw.random() < 0.5

    def look() -> None:
        from edgeformer.runtime.media.pictures.picture_files import picture_size, read_picture

        picture_size(file)
        pixels = read_picture(file, white_background=white)
        assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size > 0

    return look


def _command_line(bundles: Path, folder: Path, draw: random.Random) -> Callable[[], Any]:
    folder.mkdir(parents=True)
    made = [preset for preset in PRESETS if (bundles / preset).is_dir()]
    line = draw_line(draw, [f"bundle-{preset}" for preset in made])
    for preset in made:
        if f"bundle-{preset}" in line:  # copied, since `verify` refuses links
            shutil.copytree(bundles / preset, folder / f"bundle-{preset}")
    return call(line, folder)


TARGETS = {
    target.name: target
    for target in (
        Target("manifest", _manifest),
        Target("config", _config),
        Target("generation", _generation),
        Target("weights", _weights),
        Target("tokenizer", _tokenizer),
        Target("graph", _graph),
        Target("template", _template),
        Target("modules", _modules),
        Target("check", _check),
        Target("picture", _picture),
        Target("cli", _command_line),
    )
}
"""All targets by name."""
