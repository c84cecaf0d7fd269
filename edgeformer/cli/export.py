"""edgeformer export"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from edgeformer.cli._explain import explain
from edgeformer.cli._options import (
    ENCODERS,
    GRAPH,
    OUTPUT,
    QUANTIZATION,
    VERIFICATION,
    Command,
    json_option,
    option,
)
from edgeformer.cli._output import note, print_json, progress_bar
from edgeformer.config import Pooling
from edgeformer.contract.tensors import CacheForm
from edgeformer.manifest.deployment import DEPLOYMENTS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import (
    Arithmetic,
    Backend,
    CachePrecision,
    DeploymentName,
    OpSet,
    Precision,
    PrefillChoice,
)
from edgeformer.manifest.providers import PROVIDERS
from edgeformer.manifest.quantization import DEFAULTS, NO_OVERRIDES, Activations, QuantizationOverrides, Rounding

if TYPE_CHECKING:  # edgeformer.export imports torch
    from edgeformer.export import ExportResult

ACTIVATIONS: dict[str | None, Activations | None] = {None: None, "block": "block", "per-token": "per_token"}


@click.command("export", cls=Command)
@option("--model", required=True, help="A preset (see `edgeformer models`), a model folder, or a hub id.")
@option("--output", "-o", type=click.Path(path_type=Path), help="Bundle folder to make. [default: ./NAME]")
@option(
    "--deployment", type=click.Choice(get_args(DeploymentName)),
    help="Where the bundle is to run. Decides which files are written, and the options that are not given: "
    + "; ".join(str(DEPLOYMENTS[name]) for name in get_args(DeploymentName)) + ".",
)  # fmt: skip
@option(
    "--precision", type=click.Choice(get_args(Precision)),
    help="Data type of the weights. [default: the deployment's; fp32 without one]",
)  # fmt: skip
@option(
    "--calibrate", "calibration", type=click.Path(path_type=Path), metavar="FILE",
    help="Quantize weights by a text like those that the model is for (gptq).",
)  # fmt: skip
@option(
    "--context-length", type=int, metavar="N",
    help="Positions that the graph supports. [default: all that the model has]",
)  # fmt: skip
@option(
    "--merge-adapter", type=click.Path(path_type=Path), metavar="DIR",
    help="Merge this LoRA adapter into the weights first; DIR is what PEFT saved.",
)  # fmt: skip
@option(
    "--adapter", "adapters", multiple=True, metavar="NAME=DIR",
    help="Keep this LoRA adapter apart from a decoder's weights, for requests that name it. May be repeated.",
)  # fmt: skip
@option(
    "--allow-pickle", is_flag=True,
    help="Read the tensors of a pytorch_model.bin where there are no safetensors; nothing else in it is called.",
)  # fmt: skip
@option("--overwrite", is_flag=True, help="Replace a bundle that is already there.")
@option("--head-precision", type=click.Choice(["fp32", *DEFAULTS]), topic=QUANTIZATION,
    help="Data type of the head and the embeddings, with int4 and int8.",
)  # fmt: skip
@option(
    "--block", type=int, metavar="N", topic=QUANTIZATION,
    help="Inputs that share a scale. [default: 32 for int4, 128 for int8; 128 with --calibrate]",
)  # fmt: skip
@option("--asymmetric", is_flag=True, topic=QUANTIZATION, help="Store a zero point for every block.")
@option(
    "--rounding", type=click.Choice(get_args(Rounding)), topic=QUANTIZATION,
    help="How weights are rounded. [default: mse for int4, nearest for int8; gptq with --calibrate]",
)  # fmt: skip
@option(
    "--activations", type=click.Choice(["block", "per-token"]), topic=QUANTIZATION,
    help="Dynamic quantization of activations with int8 weights. per-token is faster for encoders. [default: block]",
)  # fmt: skip
@option(
    "--smooth", is_flag=True, topic=QUANTIZATION,
    help="Move the outliers of activations into weights (SmoothQuant), by the text of --calibrate.",
)  # fmt: skip
@option(
    "--keep", multiple=True, metavar="PATTERN", topic=QUANTIZATION,
    help="Do not quantize parameters whose names match; may be given several times.",
)  # fmt: skip
@option(
    "--cache-precision", type=click.Choice(get_args(CachePrecision)), topic=QUANTIZATION,
    help="Data type of the key/value cache; fp8 is for CUDA. [default: that of activations]",
)  # fmt: skip
@option(
    "--prefill", type=click.Choice(get_args(PrefillChoice)), topic=QUANTIZATION,
    help="Add a prefill graph with int8 weights; edgeformer-kernels need none. [default: the deployment's, or none]",
)  # fmt: skip
@option(
    "--provider", type=click.Choice(list(PROVIDERS)), default="cpu", show_default=True, topic=GRAPH,
    help="Execution provider whose kernels the graph is lowered for.",
)  # fmt: skip
@option(
    "--arithmetic", type=click.Choice(get_args(Arithmetic)), topic=GRAPH,
    help="Data type of activations; bf16 is for CUDA with int4 and int8 weights. [default: that of the weights, or "
    "fp32 for the CPU and fp16 for CUDA]",
)  # fmt: skip
@option(
    "--ops", type=click.Choice(get_args(OpSet)), default="ort", show_default=True, topic=GRAPH,
    help="Op set of the graph: onnxruntime's fused ops, standard ONNX ops, or primitive ops.",
)  # fmt: skip
@option(
    "--cache", type=click.Choice(get_args(CacheForm)[1:]), topic=GRAPH,
    help="Form of the key/value cache with --ops standard and portable; ort takes both. [default: dynamic]",
)  # fmt: skip
@option(
    "--functions", is_flag=True, topic=GRAPH,
    help="With --ops portable: keep edgeformer's ops, as functions of the model.",
)  # fmt: skip
@option(
    "--backend", type=click.Choice(get_args(Backend)), topic=GRAPH,
    help="Export this library's own module. [default: edgeformer's; transformers for a type without a family]",
)  # fmt: skip
@option(
    "--pooling", type=click.Choice(get_args(Pooling)), topic=ENCODERS,
    help="Make a sentence embedding of the states. [default: as modules.json says]",
)  # fmt: skip
@option(
    "--normalize/--no-normalize", default=None, topic=ENCODERS,
    help="Scale the sentence embedding to length one, or do not. [default: as modules.json says]",
)  # fmt: skip
@option("--full-verify", is_flag=True, topic=VERIFICATION, help="Verify as thoroughly as `edgeformer verify` does.")
@option("--no-verify", is_flag=True, topic=VERIFICATION, help="Do not compare the graph with PyTorch.")
@option(
    "--explain", "explained", is_flag=True, topic=OUTPUT,
    help="Show where each pass and rule fired, and why not elsewhere.",
)  # fmt: skip
@json_option
def export_command(
    model: str,
    output: Path | None,
    full_verify: bool,
    no_verify: bool,
    explained: bool,
    block: int | None,
    asymmetric: bool,
    rounding: Rounding | None,
    activations: str | None,
    head_precision: str | None,
    keep: tuple[str, ...],
    as_json: bool,
    deployment: DeploymentName | None,
    precision: Precision | None,
    prefill: PrefillChoice | None,
    adapters: tuple[str, ...],
    **options: Any,
) -> None:
    """Export a model to a bundle, and verify it."""
    if full_verify and no_verify:
        raise click.UsageError("--full-verify and --no-verify exclude each other.")
    overrides = QuantizationOverrides(
        block=block,
        symmetric=False if asymmetric else None,
        rounding=rounding,
        activations=ACTIVATIONS[activations],
        head=head_precision,
        keep=keep,
    )
    from edgeformer.export import ExportOptions, export_model

    export_options = ExportOptions(
        deployment=deployment,
        precision=precision,
        quantization=None if overrides == NO_OVERRIDES else overrides,
        prefill=prefill,
        adapters=_adapters(adapters),
        verify=None if no_verify else "full" if full_verify else "quick",
        **options,
    )
    with progress_bar() as progress:
        result = export_model(model, output, export_options, progress=progress)

    if as_json:
        print_json(_data(result, explained))
    else:
        _show(result, explained, asked=export_options.backend is not None)
        if result.manifest.provenance.random_weights is not None:
            note(f"note: the weights of {model} are random, not trained. Its text will be noise.")


def _adapters(given: tuple[str, ...]) -> dict[str, str]:
    """Return the folders of adapters by name. Raises UsageError for anything but NAME=DIR, and for a name twice."""
    pairs = [each.partition("=") for each in given]
    if any(not equals or not folder for _, equals, folder in pairs):
        raise click.UsageError("--adapter takes NAME=DIR, such as --adapter polite=adapters/polite.")
    folders = {name: folder for name, _, folder in pairs}
    if len(folders) < len(pairs):
        raise click.UsageError("two of --adapter have one name; give each its own.")
    return folders


def _data(result: "ExportResult", explained: bool) -> dict[str, Any]:
    """Return the result for --json; explained: with every place that passes and rules changed or skipped."""
    manifest, report = result.manifest, result.report
    passes = {done.name: {"changed": done.changed, "missed": done.missed} for done in result.lowered.passes}
    return {
        "bundle": str(result.path),
        "bytes": _size(manifest),
        "deployment": manifest.plan.deployment,
        "backend": manifest.provenance.backend,
        "text_model_of": None
        if manifest.provenance.text_model_of is None
        else asdict(manifest.provenance.text_model_of),
        "merged_adapter": None
        if manifest.provenance.merged_adapter is None
        else asdict(manifest.provenance.merged_adapter),
        "adapters": [asdict(adapter) for adapter in manifest.adapters],
        "seconds": round(result.seconds, 2),
        "random_weights": manifest.provenance.random_weights,
        "passes": passes,
        "graphs": {name: asdict(lowered) for name, lowered in result.graphs.items()} if explained else None,
        "fallbacks": result.lowered.fallbacks,
        "warnings": result.warnings,
        "parity": report.to_json() if report else None,
    }


def _show(result: "ExportResult", explained: bool, asked: bool) -> None:
    """Print what was exported, how it was verified, and the next command.

    asked: whether the user chose the backend, if there is one; otherwise edgeformer has no family of the model.
    """
    from edgeformer.client_files.model_card import first_line

    manifest, report, origin = result.manifest, result.report, result.manifest.provenance
    passes = ", ".join(f"{done.name} {done.changed}" for done in result.lowered.passes)
    click.echo(f"exported {origin.source} to {result.path}: {_size(manifest) / 1e6:.1f} MB, {result.seconds:.1f} s")
    if origin.backend is not None:
        reason = "" if asked else ", since edgeformer has no family of this model_type"
        click.echo(f"backend: the module of {origin.backend} {manifest.versions[origin.backend]}{reason}")
    if origin.text_model_of is not None:
        click.echo(str(origin.text_model_of))
    for name, digest in origin.pickled_weights.items():
        click.echo(f"pickle: {name}, SHA-256 {digest}")
    if origin.merged_adapter is not None:
        click.echo(f"merged adapter: {origin.merged_adapter}")
    for adapter in manifest.adapters:
        click.echo(f"adapter {adapter.name}: {adapter.origin}")
    if manifest.plan.deployment is not None:
        click.echo(f"deployment: {manifest.plan.deployment}")
    click.echo(f"graph: {manifest.written_in}, {manifest.plan.precision}; {passes}")
    if manifest.plan.quantization is not None:
        click.echo(f"weights: {manifest.plan.quantization}")
    if manifest.smoothing is not None:
        click.echo(f"smoothed: {manifest.smoothing}")
    if manifest.cache_scales is not None:
        click.echo(f"cache: {manifest.cache_scales.precision}, {manifest.cache.elements_per_token:,} bytes per token")
    if manifest.prefill is not None:
        graph = Path(manifest.prefill.file).name
        click.echo(f"prefill from {manifest.prefill.from_tokens} tokens: {graph}, {manifest.prefill.quantization}")
    if explained:
        for name, lowered in result.graphs.items():
            click.echo(explain(name, lowered))
    for fallback in result.lowered.fallbacks:
        click.echo(f"slower form: {fallback}")
    for warning in result.warnings:
        click.echo(f"warning: {warning}")
    if report:
        click.echo(f"verified against {report.reference}, in {report.seconds:.1f} s:\n{report.describe()}")
        if (result.path / "parity").is_dir():
            click.echo(f"  certificate: {result.path / 'parity' / 'report.html'}")
    else:
        click.echo("not verified; do it with: edgeformer verify")
    click.echo(f"next: {first_line(manifest, result.path, result.path)}")


def _size(manifest: Manifest) -> int:
    return sum(entry.bytes for entry in manifest.files.values())
