"""From an opened model and a plan to a verified bundle.

    calibrate → capture → lower → write → package → verify → seal

Each stage is a function over one state, `Export`. `run_export` calls them in order, and is the whole story.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir
from torch import Tensor

from edgeformer import __version__
from edgeformer.client_files.files import copy_files, lower_case, write_files
from edgeformer.config import Seq2SeqConfig
from edgeformer.errors import ParityError
from edgeformer.export.adapter_graph import ADAPTER_GRAPH, write_adapter_graph, write_adapters
from edgeformer.export.adapters.opened_model import OpenedModel
from edgeformer.export.alignment_heads import read_alignment
from edgeformer.export.bundle.ort_format import convert_to_ort, ort_name
from edgeformer.export.bundle.staging import staged
from edgeformer.export.bundle.writer import GraphWriter, file_entries, weight_files
from edgeformer.export.calibrate.caches import calibrate_caches
from edgeformer.export.calibrate.smoothing import Smoothed, smoothing_factors
from edgeformer.export.calibrate.text import CalibrationTokens, read_calibration
from edgeformer.export.calibrate.weights import calibrated_lowering
from edgeformer.export.capture import capture_graph
from edgeformer.export.lower import Lowered, LoweringOptions, joined, lower_captured, write_windowed_graph
from edgeformer.export.lower.alignment import alignment_graph
from edgeformer.export.lower.merged_decoder import merged_decoder
from edgeformer.export.parity import Report, verify_graph
from edgeformer.export.passes import bf16_weights
from edgeformer.export.plan import ExportPlan
from edgeformer.export.prefill_graph import PREFILL_GRAPH, write_prefill_graph
from edgeformer.export.progress import Progress
from edgeformer.export.quantize import calibrated_weights
from edgeformer.manifest.manifest import SCHEMA_VERSION, Manifest
from edgeformer.manifest.parts import AdapterGraph, AlignmentGraph, BundledAdapter, PrefillGraph, sha256
from edgeformer.manifest.quantization import Smoothing, prefill_quantization
from edgeformer.models.graph_specs import DECODER_GRAPH, ENCODER_GRAPH, GRAPH, MERGED_GRAPH
from edgeformer.runtime.sessions.session import onnxruntime

WINDOWED_GRAPH = "onnx/model_windowed.onnx"
CERTIFICATE = "parity"
"""Folder of the certificate in a bundle."""
UNVERIFIED = "It was exported with `--no-verify`: nobody checked yet that the graph computes what PyTorch computes."


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The result of an export. graphs: passes and rules by graph file. report: None where it was not verified."""

    path: Path
    manifest: Manifest
    graphs: dict[str, Lowered]
    report: Report | None
    seconds: float

    @property
    def lowered(self) -> Lowered:
        """The passes and rules of all graphs together."""
        return joined(list(self.graphs.values()))


@dataclass(kw_only=True)
class Export:
    """The state of one export: what it was given, and what its stages have made so far.

    folder: the staged bundle. weights: the parameters as they are exported, smoothed where the plan says so. lowering:
    what graphs are lowered to; calibration completes it. text: what the model is calibrated with. lowered: what was
    done to each graph, by its file. The other fields are parts of the manifest that a stage decides.
    """

    plan: ExportPlan
    model: OpenedModel
    folder: Path
    progress: Progress
    weights: Mapping[str, Tensor]
    lowering: LoweringOptions
    text: CalibrationTokens | None
    writer: GraphWriter
    lowered: dict[str, Lowered] = field(default_factory=dict)
    smoothing: Smoothing | None = None
    merged_graph: str | None = None
    alignment: AlignmentGraph | None = None
    prefill: PrefillGraph | None = None
    windows: tuple[int | None, ...] = ()
    adapter_graph: AdapterGraph | None = None
    adapters: tuple[BundledAdapter, ...] = ()


def run_export(model: OpenedModel, plan: ExportPlan, destination: Path, progress: Progress) -> ExportResult:
    """Export a model as planned. A bundle that fails verification is a ParityError and leaves nothing behind."""
    start = time.perf_counter()
    if plan.verify:
        onnxruntime()  # if it is missing, say so before the graph is written
    with staged(destination, plan.overwrite) as folder:
        export = _begin(model, plan, folder, progress)
        calibrate(export)
        write(export, lower(export, capture(export)))
        write_other_graphs(export)
        manifest = package(export)
        report = verify(export, manifest)
        manifest = seal(export, manifest, report)
    seconds = time.perf_counter() - start
    return ExportResult(path=destination, manifest=manifest, graphs=export.lowered, report=report, seconds=seconds)


def _begin(model: OpenedModel, plan: ExportPlan, folder: Path, progress: Progress) -> Export:
    deployment, text = plan.deployment, None
    if plan.calibration is not None:
        text = read_calibration(plan.calibration, model.provenance.folder, model.model_spec)
    lowering = LoweringOptions(
        ops=plan.ops,
        provider=plan.provider,
        cache_form=plan.cache_form,
        functions=plan.functions,
        quantization=plan.quantization,
        primitive_gathers=deployment.primitive_gathers,
    )
    writer = GraphWriter(folder, progress, shared=deployment.shared_data, largest=deployment.largest_data)
    return Export(
        plan=plan,
        model=model,
        folder=folder,
        progress=progress,
        weights=model.weights,
        lowering=lowering,
        text=text,
        writer=writer,
    )


def calibrate(export: Export) -> None:
    """Smooth the weights, measure the scales of a quantized cache, and round weights by the text, as far as planned."""
    plan, model_spec, text = export.plan, export.model.model_spec, export.text
    if plan.smooth:
        assert text is not None
        export.progress("smoothing", 0)
        configs = [plan.quantization, prefill_quantization(plan.quantization) if plan.prefill else None]
        factors = smoothing_factors(model_spec, export.weights, [each for each in configs if each is not None], text)
        export.weights = Smoothed(export.weights, factors)
        export.smoothing = Smoothing(norms=tuple(factors), text=text.source)
    if plan.cache_precision is not None:
        export.progress("measuring keys and values", 0)
        texts, bos = () if text is None else text.texts, export.model.provenance.tokens.bos
        scales = calibrate_caches(model_spec, export.weights, bos, texts, precision=plan.cache_precision)
        export.lowering = replace(export.lowering, cache_scales=scales)
    place = export.folder / calibrated_weights.FOLDER / "graph"
    export.lowering = calibrated_lowering(export.lowering, model_spec, export.weights, text, place, export.progress)


def capture(export: Export) -> dict[str, ir.Model]:
    """Capture every graph of the model in canonical form, by its file."""
    export.progress("capturing the graph", 0)
    model_spec, arithmetic = export.model.model_spec, export.plan.arithmetic
    return {spec.file: capture_graph(model_spec, export.weights, arithmetic, spec) for spec in model_spec.graphs}


def lower(export: Export, graphs: dict[str, ir.Model]) -> dict[str, ir.Model]:
    """Run the passes and the rules of the op set over the graphs, in place; add a merged decoder and alignment."""
    model_spec, plan = export.model.model_spec, export.plan
    lowered, aligned = {}, {}
    if not plan.deployment.ort_format:  # whose graphs would each hold the weights again
        export.alignment = read_alignment(export.model.provenance, model_spec.config)
    if export.alignment is not None:
        assert isinstance(model_spec.config, Seq2SeqConfig)
        [spec] = (spec for spec in model_spec.graphs if spec.file == DECODER_GRAPH)
        name, heads = export.alignment.graph, export.alignment.heads
        graphs[name], aligned[name] = alignment_graph(
            graphs[spec.file], spec, model_spec.config, export.lowering, heads
        )
    for spec in model_spec.graphs:
        lowered[spec.file] = lower_captured(graphs[spec.file], spec, export.lowering)
    for name, each in (lowered | aligned).items():
        if plan.precision == "bf16" and plan.arithmetic == "fp32":
            half = bf16_weights(graphs[name], model_spec.parameter_shapes())
            each = replace(each, passes=[*each.passes, half])
        export.lowered[name] = replace(each, notes=export.model.notes)
    by_ort = plan.ops == "ort" and plan.provider == "cpu"
    if isinstance(model_spec.config, Seq2SeqConfig) and by_ort and "transformers.js" in plan.deployment.clients:
        export.merged_graph = MERGED_GRAPH
        graphs[MERGED_GRAPH] = merged_decoder(graphs[ENCODER_GRAPH], graphs[DECODER_GRAPH], model_spec.config)
    return graphs


def write(export: Export, graphs: dict[str, ir.Model]) -> None:
    """Write the graphs, and stream their weights, one tensor at a time."""
    for data, names in weight_files(graphs, export.plan.deployment.shared_data).items():
        export.writer.write_all({name: graphs[name] for name in names}, data)


def write_other_graphs(export: Export) -> None:
    """Add the graphs that are made from the written one: for prompts, for caches as long as windows, for phones."""
    plan, model_spec, folder = export.plan, export.model.model_spec, export.folder
    if plan.prefill is not None:
        export.prefill, lowered = write_prefill_graph(
            model_spec,
            export.weights,
            plan.arithmetic,
            export.lowering,
            folder,
            export.writer,
            export.text,
            export.progress,
        )
        export.lowered[PREFILL_GRAPH] = replace(lowered, notes=export.model.notes)
    shutil.rmtree(folder / calibrated_weights.FOLDER, ignore_errors=True)
    if export.model.adapters:
        export.adapter_graph, export.lowered[ADAPTER_GRAPH] = write_adapter_graph(
            model_spec,
            export.weights,
            plan.arithmetic,
            export.lowering,
            {name for adapter in export.model.adapters for name in adapter.updates},
            export.writer,
            export.progress,
        )
        export.adapters = write_adapters(
            folder, export.adapter_graph, export.model.adapters, model_spec, plan.arithmetic
        )
    windowed = plan.deployment.windowed and not export.adapters and model_spec.task == "causal-lm" and plan.ops == "ort"
    if windowed and plan.prefill is None:
        export.windows = write_windowed_graph(
            folder / GRAPH, folder / WINDOWED_GRAPH, model_spec.cache, model_spec.context_length, plan.provider
        )
    if plan.deployment.ort_format:
        export.progress("converting to ORT format", 0)
        convert_to_ort(folder, [*(spec.file for spec in model_spec.graphs), *([PREFILL_GRAPH] if plan.prefill else [])])
        export.writer.hashes.clear()


def package(export: Export) -> Manifest:
    """Copy the files that belong to the model, and describe the bundle."""
    plan, provenance, model_spec = export.plan, export.model.provenance, export.model.model_spec
    copy_files(plan.deployment, provenance.folder, export.folder)
    if provenance.lower_case:
        lower_case(export.folder / "tokenizer.json")
    named = ort_name if plan.deployment.ort_format else str
    is_seq2seq = model_spec.task == "seq2seq-lm"
    packages = ["torch", "onnx", "onnx-ir", "onnxscript", *([provenance.backend] if provenance.backend else [])]
    prefill = export.prefill
    return Manifest(
        schema_version=SCHEMA_VERSION,
        task=model_spec.task,
        name=provenance.name,
        source=provenance.origin,
        random_weights=provenance.random_weights,
        ops=plan.ops,
        precision=plan.precision,
        arithmetic=plan.arithmetic,
        provider=plan.provider,
        deployment=plan.deployment.name,
        cache_form=plan.cache_form,
        functions=plan.functions,
        quantization=export.lowering.quantization,
        cache_scales=export.lowering.cache_scales,
        smoothing=export.smoothing,
        graph=named(DECODER_GRAPH if is_seq2seq else GRAPH),
        encoder_graph=named(ENCODER_GRAPH) if is_seq2seq else None,
        merged_graph=export.merged_graph,
        windowed_graph=WINDOWED_GRAPH if export.windows else None,
        windows=export.windows,
        prefill=prefill and replace(prefill, graph=named(prefill.graph)),
        vocab_size=model_spec.vocab_size,
        context_length=model_spec.context_length,
        cache=model_spec.cache,
        model=model_spec.config,
        backend=provenance.backend,
        text_model_of=provenance.text_model_of,
        merged_adapter=provenance.merged_adapter,
        adapter_graph=export.adapter_graph,
        adapters=export.adapters,
        prompts=provenance.prompts,
        pickled_weights=provenance.pickled_weights,
        alignment=export.alignment,
        tokens=provenance.tokens,
        generation=provenance.generation,
        files=file_entries(export.folder, export.writer.hashes),
        weights=export.writer.weights,
        versions={"edgeformer": __version__, **{package: version(package) for package in packages}},
        parity=None,
    )


def verify(export: Export, manifest: Manifest) -> Report | None:
    """Compare the graphs with the model as it was before smoothing. Raises ParityError where they are not at parity."""
    if export.plan.verify is None:
        return None
    model = export.model
    report = verify_graph(
        export.folder,
        manifest,
        model.model_spec,
        model.weights,
        adapters={adapter.name: adapter.updates for adapter in model.adapters},
        mode=export.plan.verify,
        progress=export.progress,
    )
    report = replace(report, comparison=model.comparison, pickled_weights=manifest.pickled_weights)
    if not report.passed:
        if report.only_kernels_failed:
            raise ParityError(
                f"the graph is right by itself, and kernels of edgeformer-kernels compute something else on this "
                f"machine:\n{report.describe()}\nNo bundle was made. This is a bug in edgeformer-kernels; please "
                "report it. "
                "To export without them, set EDGEFORMER_KERNELS=0."
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
    folder, deployment, proof, card = export.folder, export.plan.deployment, None, UNVERIFIED
    if report is not None:
        # Imported here, because it draws with matplotlib, which takes a second to import.
        from edgeformer.export.parity.certificate.page import paragraph, summary, write_certificate

        proof, card = {**summary(report), "hashes": report.hashes}, paragraph(report)
        if deployment.certificate:
            write_certificate(report, folder / CERTIFICATE, manifest.name)
            proof["report"] = sha256(folder / CERTIFICATE / "report.json")
            card += f" See [the certificate]({CERTIFICATE}/report.html)."
    write_files(folder, deployment, export.model.provenance.hf_config, manifest, card)
    known = {name: entry.sha256 for name, entry in manifest.files.items()}
    sealed = replace(manifest, parity=proof, files=file_entries(folder, known))
    sealed.write(folder)
    return sealed
