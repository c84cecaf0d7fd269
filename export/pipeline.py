"""`export_model`: from a preset, a folder or a hub id to a verified bundle."""

import json
import shutil
import time
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import onnx_ir as ir
from torch import Tensor

from edgeformer import __version__, schema
from edgeformer.config import ModelConfig
from edgeformer.errors import ExportError, ParityError
from edgeformer.export.bundle import GraphWriter, Progress, file_entries, staged
from edgeformer.export.capture import capture_decoder
from edgeformer.export.clients.genai import genai_config
from edgeformer.export.lower import Lowered, lower_ort
from edgeformer.export.model_card import model_card
from edgeformer.export.parity import Mode, Report, verify_graph
from edgeformer.export.passes import expected_changes
from edgeformer.export.tensors import TORCH_PRECISIONS
from edgeformer.manifest import SCHEMA_VERSION, Manifest, Precision, Provider, sha256
from edgeformer.models import Decoder, decoder_constants
from edgeformer.runtime.session import onnxruntime
from edgeformer.source import ModelSource, open_source

GRAPH = "onnx/model.onnx"
CERTIFICATE = "parity"
UNVERIFIED = "It was exported with `--no-verify`: nobody checked yet that the graph computes what PyTorch computes."

# Files of a Hugging Face folder that clients of a bundle read; config.json is written anew.
COPIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What an export made. report is None where it was not verified."""

    path: Path
    manifest: Manifest
    lowered: Lowered
    report: Report | None
    seconds: float


def export_model(
    model: str | Path,
    output: str | Path | None = None,
    *,
    precision: Precision = "fp32",
    provider: Provider = "cpu",
    context_length: int | None = None,
    verify: Mode | None = "quick",
    overwrite: bool = False,
    progress: Progress = lambda what, part: None,
) -> ExportResult:
    """Export a model to a bundle folder.

    model: a preset, a folder with config.json and safetensors, or a hub id. output: by default ./ and the model's name.
    precision: of weights and arithmetic. provider: whose kernels the graph must find. context_length: positions to
    provide for, by default all. verify: how much to compare the graph with PyTorch before the bundle is put in place,
    None for not at all; a graph that fails is a ParityError and leaves nothing. Raises an EdgeformerError for anything
    that the user can mend.
    """
    start = time.perf_counter()
    for name, value, choices in (
        ("precision", precision, get_args(Precision)),
        ("provider", provider, get_args(Provider)),
        ("verify", verify, (None, *get_args(Mode))),
    ):
        if value not in choices:
            raise ExportError(f"{name} is {value!r}; it must be one of {', '.join(map(str, choices))}.")
    if verify:
        onnxruntime()  # missing, it is better missed now than after the graph is written
    source = open_source(model, context_length)
    weights = source.weights()
    destination = _destination(source, output)
    with staged(destination, overwrite) as folder:
        progress("capturing the graph", 0)
        graph, lowered = build_graph(source.config, weights, precision, provider)
        writer = GraphWriter(folder, progress)
        writer.write(graph, GRAPH)
        del graph
        manifest = _manifest(source, precision, provider, writer)
        for name in COPIED_FILES:
            if (source.folder / name).is_file():
                shutil.copyfile(source.folder / name, folder / name)
        report, card = None, UNVERIFIED
        if verify:
            # Imported here, since it draws with matplotlib, which takes its time.
            from edgeformer.export.parity.certificate import paragraph, summary, write_certificate

            manifest = replace(manifest, files=file_entries(folder, writer.hashes))
            report = verify_graph(folder, manifest, weights, mode=verify, progress=progress)
            if not report.passed:
                raise ParityError(
                    f"the exported graph does not compute what PyTorch computes:\n{report.describe()}\n"
                    "No bundle was made. This is a bug in edgeformer; please report it with the model's config.json. "
                    "To look at the graph, export it with --no-verify."
                )
            write_certificate(report, folder / CERTIFICATE, source.name)
            certificate = {"report": sha256(folder / CERTIFICATE / "report.json"), "hashes": report.hashes}
            manifest, card = replace(manifest, parity=summary(report) | certificate), paragraph(report)
            card += f" See [the certificate]({CERTIFICATE}/report.html)."
        _write_files(folder, source, manifest, card)
        manifest = replace(manifest, files=file_entries(folder, writer.hashes))
        manifest.write(folder)
    return ExportResult(
        path=destination, manifest=manifest, lowered=lowered, report=report, seconds=time.perf_counter() - start
    )


def build_graph(
    config: ModelConfig, weights: Mapping[str, Tensor], precision: Precision = "fp32", provider: Provider = "cpu"
) -> tuple[ir.Model, Lowered]:
    """Capture a decoder and lower it; its weights are read when the graph is written."""
    dtype = TORCH_PRECISIONS[precision]
    values = ChainMap(decoder_constants(config), weights)  # type: ignore[arg-type]  # nothing writes to it
    graph = capture_decoder(lambda: Decoder(config, dtype), config.cache_geometry, dtype, values)
    return graph, lower_ort(graph, provider, expected=expected_changes(config))


def _destination(source: ModelSource, output: str | Path | None) -> Path:
    if output is not None:
        return Path(output)
    destination = Path(source.name)
    # A checkpoint in the current folder keeps its name to itself.
    return Path(f"{source.name}-onnx") if destination.resolve() == source.folder.resolve() else destination


def _manifest(source: ModelSource, precision: Precision, provider: Provider, writer: GraphWriter) -> Manifest:
    packages = ("torch", "onnx", "onnx-ir", "onnxscript")
    return Manifest(
        schema_version=SCHEMA_VERSION,
        task="causal-lm",
        name=source.name,
        source=source.origin,
        random_weights=source.random_weights,
        ops="ort",
        precision=precision,
        provider=provider,
        graph=GRAPH,
        model=source.config,
        cache=source.config.cache_geometry,
        tokens=source.special_tokens(),
        files={},
        weights=writer.weights,
        versions={"edgeformer": __version__, **{package: version(package) for package in packages}},
        parity=None,
    )


def _write_files(folder: Path, source: ModelSource, manifest: Manifest, parity: str) -> None:
    # A client must not go past the positions that the graph has.
    hf_config = source.hf_config | {"max_position_embeddings": source.config.context_length}
    _write_json(folder / "config.json", hf_config)
    _write_json(folder / "genai_config.json", genai_config(manifest))
    (folder / "README.md").write_text(model_card(manifest, parity), encoding="utf-8")


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(schema.to_json(data), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
