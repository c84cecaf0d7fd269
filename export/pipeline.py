"""From an opened model and a plan to a verified bundle.

    calibrate → write (capture, lower) → package → verify → seal

Each stage is a function over one state, `Export`. `run_export` calls them in order, and is the whole story.
"""

import math
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from edgeformer import __version__
from edgeformer.client_files.files import copy_files, lower_case, write_files
from edgeformer.client_files.genai_pictures import picture_type
from edgeformer.errors import ParityError
from edgeformer.export.adapter_graph import write_adapters
from edgeformer.export.alignment_heads import read_alignment
from edgeformer.export.bundle.ort_format import convert_to_ort, ort_name
from edgeformer.export.bundle.staging import staged
from edgeformer.export.bundle.writer import GraphWriter, file_entries
from edgeformer.export.calibrate.caches import calibrate_caches
from edgeformer.export.calibrate.smoothing import Smoothed, smoothing_factors
from edgeformer.export.calibrate.target_formats import with_target_formats
from edgeformer.export.calibrate.text import read_calibration
from edgeformer.export.calibrate.weights import with_calibrated_weights
from edgeformer.export.graph_folder import GraphFolder
from edgeformer.export.graph_forms import make_graphs
from edgeformer.export.importers.opened_model import Comparison, OpenedModel
from edgeformer.export.lower import GraphJob, Lowered, joined
from edgeformer.export.parity import Report, verify_graph
from edgeformer.export.parity.certificate.page import write_certificate
from edgeformer.export.parity.certificate.words import paragraph, summary
from edgeformer.export.progress import Progress
from edgeformer.export.quantize import calibrated_weights
from edgeformer.export.worker_process import WorkerProcess, sharing_cores
from edgeformer.manifest.graph_forms import AdapterGraph
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import BundledAdapter, sha256
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.quantization import Smoothing
from edgeformer.options.export import ExportOptions
from edgeformer.options.target_size import target_size
from edgeformer.runtime.sessions.session import onnxruntime

CERTIFICATE = "parity"
"""Folder of the certificate in a bundle."""
UNVERIFIED = "It was exported with `--no-verify`: nobody checked yet that the graph computes what PyTorch computes."

Compared = tuple[Comparison | None, tuple[str, ...]]
"""The comparison of a checkpoint with transformers, and all warnings about its files."""


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The result of an export.

    graphs: passes and rules by graph file. report: None where it was not verified. warnings: of the model's tokenizer
    and generation files.
    """

    path: Path
    manifest: Manifest
    graphs: dict[str, Lowered]
    report: Report | None
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def lowered(self) -> Lowered:
        """The passes and rules of all graphs together."""
        return joined(list(self.graphs.values()))


@dataclass(kw_only=True)
class Export:
    """The state of one export: what it was given, and what its stages have made so far.

    Attributes:
        options: what was asked for.
        model: what is exported.
        out: the staged bundle, with the job of its graphs.
        smoothing: how weights were smoothed.
        adapters: LoRA adapters that are kept apart from the weights.
        comparing: a process that compares the model with transformers meanwhile.
    """

    options: ExportOptions
    model: OpenedModel
    out: GraphFolder
    smoothing: Smoothing | None = None
    adapters: tuple[BundledAdapter, ...] = ()
    comparing: WorkerProcess[Compared] | None = None

    @property
    def plan(self) -> ExportPlan:
        """The plan, which calibration completes."""
        return self.out.job.plan


def run_export(
    model: OpenedModel,
    plan: ExportPlan,
    options: ExportOptions,
    destination: Path,
    progress: Progress,
    comparing: WorkerProcess[Compared] | None = None,
) -> ExportResult:
    """Export a model as planned. A bundle that fails verification is a ParityError and leaves nothing behind.

    comparing: a process that compares the model with transformers meanwhile. An error that it raises ends the export.
    """
    start = time.perf_counter()
    if options.verify:
        onnxruntime()  # if it is missing, say so before the graph is written
    with staged(destination, options.overwrite) as folder:
        export = _begin(model, plan, options, folder, progress)
        export.comparing = comparing
        calibrate(export)
        _check(comparing)
        with nullcontext() if comparing is None else sharing_cores():
            write(export)
        _check(comparing)
        manifest = package(export)
        report = verify(export, manifest)
        manifest = seal(export, manifest, report)
    seconds = time.perf_counter() - start
    return ExportResult(
        path=destination, manifest=manifest, graphs=export.out.lowered, report=report, seconds=seconds,
        warnings=export.model.warnings,
    )  # fmt: skip


def _check(comparing: WorkerProcess[Compared] | None) -> None:
    """End the export where the comparison has failed already."""
    if comparing is not None:
        comparing.raise_failure()


def _begin(model: OpenedModel, plan: ExportPlan, options: ExportOptions, folder: Path, progress: Progress) -> Export:
    text = None
    if options.calibration is not None:
        origin = model.origin
        text = read_calibration(
            options.calibration, origin.folder, model.model_spec, origin.pictures, origin.placeholder
        )
    alignment = read_alignment(model.origin, model.model_spec.config)
    origin = model.origin
    placeholder = None if origin.placeholder is None else origin.placeholder.token
    seen_in_genai = "onnxruntime-genai" in plan.place.clients and picture_type(origin.hf_config, origin.pictures)
    job = GraphJob(
        model_spec=model.model_spec, weights=model.weights, plan=plan, alignment=alignment,
        placeholder=placeholder if seen_in_genai else None,
        adapted=frozenset(name for adapter in model.adapters for name in adapter.updates),
    )  # fmt: skip
    writer = GraphWriter(folder, progress, shared=plan.place.shared_data, largest=plan.place.largest_data)
    out = GraphFolder(job=job, folder=folder, writer=writer, progress=progress, text=text)
    return Export(options=options, model=model, out=out)


def calibrate(export: Export) -> None:
    """Smooth weights, choose their formats, measure the scales of a quantized cache, and round weights, as planned."""
    plan, out = export.plan, export.out
    if plan.smooth:
        assert out.text is not None and plan.quantization is not None
        out.progress("smoothing", 0)
        factors = smoothing_factors(out.job, plan.quantization, out.text)
        out.job = replace(out.job, weights=Smoothed(out.job.weights, factors))
        export.smoothing = Smoothing(norms=tuple(factors), text=out.text.source)
    options = export.options
    if (target := target_size(options.target_size, options.bits)) is not None:
        assert out.text is not None
        kept = None if options.sensitivities is None else Path(options.sensitivities)
        out.job = with_target_formats(out.job, out.text, target, kept, out.progress)
    if plan.quantized_cache is not None:
        out.progress("measuring keys and values", 0)
        texts, bos = () if out.text is None else out.text.texts, export.model.origin.tokens.bos
        out.job = replace(out.job, cache_scales=calibrate_caches(out.job, bos, texts))
    out.job = with_calibrated_weights(out.job, out.text, out.folder / calibrated_weights.FOLDER, out.progress)


def write(export: Export) -> None:
    """Capture, lower and write the graphs in every form that is wanted, their weights, and the adapters."""
    out, model = export.out, export.model
    out.progress("capturing the graph", 0)
    make_graphs(out)
    main = out.graphs["model"].file
    out.lowered[main] = replace(out.lowered[main], notes=model.notes)
    shutil.rmtree(out.folder / calibrated_weights.FOLDER, ignore_errors=True)
    if isinstance(graph := out.graphs.get("adapters"), AdapterGraph):
        export.adapters = write_adapters(out, graph, model.adapters)
    if export.plan.place.ort_format:
        out.progress("converting to ORT format", 0)
        convert_to_ort(out.folder, [graph.file for graph in out.graphs.values()])
        out.writer.hashes.clear()
        for name, graph in out.graphs.items():
            out.graphs[name] = replace(graph, file=ort_name(graph.file))


def package(export: Export) -> Manifest:
    """Copy the files that belong to the model, and describe the bundle."""
    origin, model_spec, out = export.model.origin, export.model.model_spec, export.out
    hears = model_spec.task == "audio-text-to-text"
    copy_files(export.plan.place, origin.folder, out.folder, processors=hears or origin.pictures is not None)
    if origin.lower_case:
        lower_case(out.folder / "tokenizer.json")
    backend = origin.provenance.backend
    packages = ["torch", "onnx", "onnx-ir", "onnxscript", *([backend] if backend else [])]
    return Manifest(
        task=model_spec.task,
        name=origin.name,
        provenance=origin.provenance,
        plan=export.plan,
        graphs=out.graphs,
        vocab_size=model_spec.vocab_size,
        context_length=model_spec.context_length,
        cache=model_spec.cache,
        model=model_spec.config,
        tokens=origin.tokens,
        generation=origin.generation,
        prompts=origin.prompts,
        pictures=origin.pictures,
        placeholder=origin.placeholder,
        similarity=origin.similarity,
        adapters=export.adapters,
        cache_scales=out.job.cache_scales,
        smoothing=export.smoothing,
        files=file_entries(out.folder, out.writer.hashes),
        weights=out.writer.weights,
        versions={"edgeformer": __version__, **{package: version(package) for package in packages}},
        parity=None,
    )


def verify(export: Export, manifest: Manifest) -> Report | None:
    """Compare the graphs with the model as it was before smoothing. Raises ParityError where they are not at parity."""
    if export.options.verify is None:
        return None
    model = export.model
    report = verify_graph(
        export.out.folder,
        manifest,
        model.model_spec,
        model.weights,
        adapters={adapter.name: adapter.updates for adapter in model.adapters},
        mode=export.options.verify,
        progress=export.out.progress,
    )
    if export.comparing is not None:
        export.out.progress("comparing with transformers", 0.99)
        comparison, warnings = export.comparing.result()
        model = export.model = replace(model, comparison=comparison, warnings=warnings)
    report = replace(report, comparison=model.comparison, pickled_weights=manifest.provenance.pickled_weights)
    if not report.passed:
        if report.only_kernels_failed:
            raise ParityError(
                f"the graph is right by itself, and kernels of edgeformer-kernels compute something else on this "
                f"machine:\n{report.describe()}\nNo bundle was made. This is a bug in edgeformer-kernels; please "
                "report it. "
                "To export without them, set EDGEFORMER_KERNELS=0."
            )
        if export.plan.arithmetic == "fp16" and not all(math.isfinite(check.value) for check in report.failures()):
            raise ParityError(
                f"numbers of this model are larger than float16 can hold, which is 65,504:\n{report.describe()}\n"
                "No bundle was made. Export it with --precision bf16 or fp32."
            )
        code, option = ("code", "verify=None") if manifest.model is None else ("config.json", "--no-verify")
        raise ParityError(
            f"the exported graph does not compute what PyTorch computes:\n{report.describe()}\n"
            f"No bundle was made. This is a bug in edgeformer; please report it with the model's {code}. "
            f"To look at the graph, export it with {option}."
        )
    return report


def seal(export: Export, manifest: Manifest, report: Report | None) -> Manifest:
    """Write the certificate, the files of clients, the model card and, last, the manifest."""
    folder, deployment, proof, card = export.out.folder, export.plan.place, None, UNVERIFIED
    if report is not None:
        proof, card = {**summary(report), "hashes": report.hashes}, paragraph(report)
        if deployment.certificate:
            write_certificate(report, folder / CERTIFICATE, manifest.name)
            proof["report"] = sha256(folder / CERTIFICATE / "report.json")
            card += f" See [the certificate]({CERTIFICATE}/report.html)."
    card += "".join(f"\n\n> **Note:** {warning}" for warning in export.model.warnings)
    write_files(folder, deployment, export.model.origin.hf_config, manifest, card)
    known = {name: entry.sha256 for name, entry in manifest.files.items()}
    sealed = replace(manifest, parity=proof, files=file_entries(folder, known))
    sealed.write(folder)
    return sealed
