"""From a model to a verified bundle.

`export_model` takes a preset, a folder or a hub id, `export_module` (own_module.py) a module of the user. Once they
know the model's model spec, its weights and where it comes from, `export_blueprint` does all the rest.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from edgeformer import __version__
from edgeformer.config import DecoderConfig, EncoderConfig, Seq2SeqConfig
from edgeformer.deployment import ANYWHERE, DEPLOYMENTS, Deployment
from edgeformer.errors import ExportError, ParityError
from edgeformer.export.bundle.client_files import client_config, copy_files, write_files
from edgeformer.export.bundle.ort_format import convert_to_ort, in_ort_format
from edgeformer.export.bundle.writer import GraphWriter, Progress, file_entries, staged, weight_files
from edgeformer.export.calibrate.caches import calibrate_caches
from edgeformer.export.calibrate.smoothing import smoothing_factors
from edgeformer.export.calibrate.text import Calibration, read_calibration
from edgeformer.export.calibrate.weights import calibrated_target
from edgeformer.export.lower import CacheChoice, Lowered, LoweringOptions, joined, write_windowed_graph
from edgeformer.export.lower.build import build_graph
from edgeformer.export.lower.merged_decoder import merged_decoder
from edgeformer.export.options import arithmetic_of, check_deployment, check_options, check_parts, choose
from edgeformer.export.parity import Mode, Report, verify_graph
from edgeformer.export.passes import bf16_weights
from edgeformer.export.prefill_graph import PREFILL_GRAPH, write_prefill_graph
from edgeformer.export.quantize import calibrated_weights as calibrated
from edgeformer.export.quantize.smoothed_weights import Smoothed
from edgeformer.graph_specs import DECODER_GRAPH, ENCODER_GRAPH, GRAPH, MERGED_GRAPH
from edgeformer.manifest import (
    SCHEMA_VERSION,
    Backend,
    CachePrecision,
    DeploymentName,
    Manifest,
    OpSet,
    Precision,
    Prefill,
    PrefillChoice,
    Provider,
    SpecialTokens,
    Task,
    sha256,
)
from edgeformer.model_spec import ModelSpec, model_spec_of
from edgeformer.quantization import Quantization, Smoothing, prefill_quantization
from edgeformer.runtime.session import onnxruntime
from edgeformer.sentence_transformers import Pooling
from edgeformer.source import FoundModel, find_model, open_source

WINDOWED_GRAPH = "onnx/model_windowed.onnx"
CERTIFICATE = "parity"
UNVERIFIED = "It was exported with `--no-verify`: nobody checked yet that the graph computes what PyTorch computes."

TASKS: dict[type, Task] = {
    DecoderConfig: "causal-lm",
    type(None): "causal-lm",
    Seq2SeqConfig: "seq2seq-lm",
    EncoderConfig: "encoder",
}
"""What bundles are for, by the config of the model; a module that is not ours is a decoder."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model comes from, and what its bundle takes along from there.

    name: of the bundle. origin: for people. random_weights: the seed, where no checkpoint stands behind the model.
    folder: whose tokenizer and generation files are copied. hf_config: what clients find as config.json. generation:
    how its makers want an encoder-decoder to generate. via: the
    library that has the module, where it is neither ours nor the user's.
    """

    name: str
    origin: str
    tokens: SpecialTokens
    random_weights: int | None = None
    folder: Path | None = None
    hf_config: dict[str, Any] | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    backend: Backend | None = None


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What an export made. graphs: what was done to each, by its file. report: None where it was not verified."""

    path: Path
    manifest: Manifest
    graphs: dict[str, Lowered]
    report: Report | None
    seconds: float

    @property
    def lowered(self) -> Lowered:
        """What was done to all graphs together."""
        return joined(list(self.graphs.values()))


def export_model(
    model: str | Path,
    output: str | Path | None = None,
    *,
    deployment: DeploymentName | None = None,
    precision: Precision | None = None,
    provider: Provider = "cpu",
    ops: OpSet = "ort",
    cache: CacheChoice | None = None,
    cache_precision: CachePrecision | None = None,
    functions: bool = False,
    quantization: Quantization | None = None,
    calibration: Calibration | None = None,
    context_length: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    prefill: PrefillChoice | None = None,
    smooth: bool = False,
    verify: Mode | None = "quick",
    overwrite: bool = False,
    progress: Progress = lambda what, part: None,
    backend: Backend | None = None,
) -> ExportResult:
    """Export a model to a bundle folder.

    model: a preset, a folder with config.json and safetensors, or a hub id. output: by default ./ and the model's name.
    target: where it is to run. That decides which files are written, and proposes what is not given of precision,
    quantization and prefill (`edgeformer.deployment`); by default all files are written, and weights stay float32.
    precision: of weights and arithmetic; with bf16, weights alone, and float32 arithmetic. quantization: the recipe of
    int8 and int4, if another than the default one.
    calibration: a text of what the model is for, a file or token ids, by which int8 and int4 are rounded (`gptq`) and
    the scales of an int8 cache are chosen.
    provider: whose kernels the graph must find. ops: which ops it is written in.
    cache: whether such a graph takes a dynamic cache or a static one; graphs of `ort` take both. cache_precision: int8
    for a decoder whose cache takes a quarter of the memory; by default caches are made of what activations are.
    functions: leave our ops in a `portable` graph as functions of the model. context_length: positions to
    provide for, by default all. pooling, normalize: make one vector of an encoder's states, as `open_source` says.
    prefill: of a decoder, add a view for prompts over int8 weights, or `none` though the target has one. smooth:
    where tokens are rounded whole, even out by the calibration text what they are rounded of.
    verify: how much to compare the graph with PyTorch before the bundle is put in place, None for not at all; a graph
    that fails is a ParityError and leaves nothing. via: the library whose own module to export, for architectures
    without a family here. Raises an EdgeformerError for anything that the user can mend.
    """
    check_options(precision, provider, verify, backend, ops, cache, deployment)
    source = None if backend is not None else open_source(model, context_length, pooling, normalize)
    chosen_deployment = DEPLOYMENTS[deployment]
    chosen, lowering = choose(
        chosen_deployment,
        None if source is None else source.config,
        ops=ops,
        provider=provider,
        cache=cache,
        functions=functions,
        precision=precision,
        quantization=quantization,
        calibration=calibration,
        prefill=prefill,
    )
    if source is None:
        # Imported here, since transformers is an extra of its own, and takes its time.
        from edgeformer.export.adapters.transformers_backend import export_via_transformers

        if pooling is not None or normalize is not None:
            raise ExportError("pooling is for encoders, and only decoders are exported via another library.")
        found = find_model(model)
        return export_via_transformers(
            found,
            _destination(found, output),
            precision=chosen.precision,
            target=lowering,
            deployment=chosen_deployment,
            cache_precision=cache_precision,
            prefill=chosen.prefill,
            smooth=smooth,
            calibration=calibration,
            context_length=context_length,
            verify=verify,
            overwrite=overwrite,
            progress=progress,
        )
    if cache is not None and isinstance(source.config, EncoderConfig):
        raise ExportError(f"{source.name} is an encoder, which has no cache; leave cache out.")
    provenance = Provenance(
        name=source.name,
        origin=source.origin,
        random_weights=source.random_weights,
        tokens=source.special_tokens(),
        folder=source.folder,
        hf_config=client_config(source),
        generation=source.generation_defaults(),
    )
    return export_model_spec(
        model_spec_of(source.config),
        source.weights(),
        provenance,
        _destination(source, output),
        precision=chosen.precision,
        target=lowering,
        deployment=chosen_deployment,
        cache_precision=cache_precision,
        prefill=chosen.prefill,
        smooth=smooth,
        calibration=calibration,
        verify=verify,
        overwrite=overwrite,
        progress=progress,
    )


def export_model_spec(
    model_spec: ModelSpec,
    weights: Mapping[str, Tensor],
    provenance: Provenance,
    destination: Path,
    *,
    precision: Precision,
    target: LoweringOptions,
    deployment: Deployment = ANYWHERE,
    cache_precision: CachePrecision | None = None,
    prefill: Prefill | None = None,
    smooth: bool = False,
    calibration: Calibration | None = None,
    verify: Mode | None,
    overwrite: bool,
    progress: Progress,
) -> ExportResult:
    """Export a model whose model spec and weights are at hand: all that every kind of model has in common.

    weights: the module's parameters by name, each read when it is needed. The rest is as for `export_model`.
    """
    start = time.perf_counter()
    check_parts(model_spec, precision, target, cache_precision, prefill, calibration, smooth)
    check_deployment(deployment, precision)
    text = None if calibration is None else read_calibration(calibration, provenance.folder, model_spec)
    if verify:
        onnxruntime()  # missing, it is better missed now than after the graph is written
    original, smoothing = weights, None
    if smooth:
        assert text is not None
        progress("smoothing", 0)
        recipes = [target.quantization, prefill_quantization(target.quantization) if prefill else None]
        factors = smoothing_factors(model_spec, weights, [each for each in recipes if each is not None], text)
        weights, smoothing = Smoothed(weights, factors), Smoothing(norms=tuple(factors), text=text.source)
    with staged(destination, overwrite) as folder:
        if cache_precision is not None:
            progress("measuring keys and values", 0)
            texts = () if text is None else text.texts
            scales = calibrate_caches(model_spec, weights, provenance.tokens.bos, texts)
            target = replace(target, cache_scales=scales)
        target = calibrated_target(target, model_spec, weights, text, folder / calibrated.FOLDER / "graph", progress)
        progress("capturing the graph", 0)
        arithmetic = arithmetic_of(precision, target)
        built = {spec.file: build_graph(model_spec, weights, arithmetic, target, spec) for spec in model_spec.graphs}
        graphs = {name: how for name, (_, how) in built.items()}
        if precision == "bf16":
            for name, (graph, how) in built.items():
                graphs[name] = replace(how, passes=[*how.passes, bf16_weights(graph, model_spec.parameter_shapes())])
        models, merged = {name: graph for name, (graph, _) in built.items()}, None
        by_ort = target.ops == "ort" and target.provider == "cpu"
        if isinstance(model_spec.config, Seq2SeqConfig) and by_ort and "transformers.js" in deployment.clients:
            merged = MERGED_GRAPH
            models[merged] = merged_decoder(models[ENCODER_GRAPH], models[DECODER_GRAPH], model_spec.config)
        writer = GraphWriter(folder, progress, shared=deployment.shared_data, largest=deployment.largest_data)
        for data, names in weight_files(models, deployment.shared_data).items():
            writer.write_all({name: models[name] for name in names}, data)
        del built, models
        view = None
        if prefill is not None:
            view, graphs[PREFILL_GRAPH] = write_prefill_graph(
                model_spec, weights, arithmetic, target, folder, writer, text, progress
            )
        shutil.rmtree(folder / calibrated.FOLDER, ignore_errors=True)
        manifest = _manifest(model_spec, provenance, precision, target, writer)
        manifest = replace(manifest, deployment=deployment.name, merged_graph=merged, prefill=view, smoothing=smoothing)
        if deployment.windowed and manifest.task == "causal-lm" and target.ops == "ort" and prefill is None:
            windows = write_windowed_graph(
                folder / GRAPH, folder / WINDOWED_GRAPH, model_spec.cache, model_spec.context_length, target.provider
            )
            if windows:
                manifest = replace(manifest, windowed_graph=WINDOWED_GRAPH, windows=windows)
        if deployment.ort_format:
            progress("converting to ORT format", 0)
            convert_to_ort(folder, manifest.all_graphs)
            manifest = in_ort_format(manifest)
            writer.hashes.clear()
        copy_files(deployment, provenance.folder, folder)
        manifest = replace(manifest, files=file_entries(folder, writer.hashes))
        report, card = None, UNVERIFIED
        if verify:
            # Imported here, since it draws with matplotlib, which takes its time.
            from edgeformer.export.parity.certificate.page import paragraph, summary, write_certificate

            report = verify_graph(folder, manifest, model_spec, original, mode=verify, progress=progress)
            if not report.passed:
                raise ParityError(_not_at_parity(model_spec, report))
            proof, card = {**summary(report), "hashes": report.hashes}, paragraph(report)
            if deployment.certificate:
                write_certificate(report, folder / CERTIFICATE, provenance.name)
                proof["report"] = sha256(folder / CERTIFICATE / "report.json")
                card += f" See [the certificate]({CERTIFICATE}/report.html)."
            manifest = replace(manifest, parity=proof)
        write_files(folder, deployment, provenance.hf_config, manifest, card)
        known = {name: entry.sha256 for name, entry in manifest.files.items()}
        manifest = replace(manifest, files=file_entries(folder, known))
        manifest.write(folder)
    return ExportResult(
        path=destination, manifest=manifest, graphs=graphs, report=report, seconds=time.perf_counter() - start
    )


def _destination(source: FoundModel, output: str | Path | None) -> Path:
    if output is not None:
        return Path(output)
    destination = Path(source.name)
    # A checkpoint in the current folder keeps its name to itself.
    return Path(f"{source.name}-onnx") if destination.resolve() == source.folder.resolve() else destination


def _manifest(
    model_spec: ModelSpec, provenance: Provenance, precision: Precision, target: LoweringOptions, writer: GraphWriter
) -> Manifest:
    task = TASKS[type(model_spec.config)]
    packages = ["torch", "onnx", "onnx-ir", "onnxscript", *([provenance.backend] if provenance.backend else [])]
    return Manifest(
        schema_version=SCHEMA_VERSION,
        task=task,
        name=provenance.name,
        source=provenance.origin,
        random_weights=provenance.random_weights,
        ops=target.ops,
        precision=precision,
        provider=target.provider,
        cache_form=target.cache_form,
        functions=target.functions,
        quantization=target.quantization,
        cache_scales=target.cache_scales,
        graph=DECODER_GRAPH if task == "seq2seq-lm" else GRAPH,
        encoder_graph=ENCODER_GRAPH if task == "seq2seq-lm" else None,
        vocab_size=model_spec.vocab_size,
        context_length=model_spec.context_length,
        cache=model_spec.cache,
        model=model_spec.config,
        backend=provenance.backend,
        tokens=provenance.tokens,
        generation=provenance.generation,
        files={},
        weights=writer.weights,
        versions={"edgeformer": __version__, **{package: version(package) for package in packages}},
        parity=None,
    )


def _not_at_parity(model_spec: ModelSpec, report: Report) -> str:
    code, option = ("code", "verify=None") if model_spec.config is None else ("config.json", "--no-verify")
    return (
        f"the exported graph does not compute what PyTorch computes:\n{report.describe()}\n"
        f"No bundle was made. This is a bug in edgeformer; please report it with the model's {code}. "
        f"To look at the graph, export it with {option}."
    )
