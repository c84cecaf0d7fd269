"""edgeformer export"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from edgeformer.cli._explain import explain
from edgeformer.cli._options import json_option
from edgeformer.cli._output import note, print_json, progress_bar
from edgeformer.deployment import DEPLOYMENTS
from edgeformer.manifest import Backend, CachePrecision, DeploymentName, OpSet, Precision, PrefillChoice, Provider
from edgeformer.quantization import DEFAULTS, NO_OVERRIDES, QuantizationOverrides, Rounding
from edgeformer.sentence_transformers import Pooling


@click.command("export")
@click.option("--model", required=True, help="A preset (see `edgeformer models`), a model folder, or a hub id.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Bundle folder to make. [default: ./NAME]")
@click.option(
    "--deployment",
    type=click.Choice(get_args(DeploymentName)),
    help="Where it is to run: which files to write, and what to do where no option says otherwise. "
    + "; ".join(str(DEPLOYMENTS[name]) for name in get_args(DeploymentName)),
)
@click.option(
    "--precision", type=click.Choice(get_args(Precision)), help="[default: the deployment's; fp32 without one]"
)
@click.option(
    "--provider",
    type=click.Choice(get_args(Provider)),
    default="cpu",
    show_default=True,
    help="Whose kernels the graph must find.",
)
@click.option(
    "--ops",
    type=click.Choice(get_args(OpSet)),
    default="ort",
    show_default=True,
    help="Which ops the graph is made of.",
)
@click.option(
    "--cache",
    type=click.Choice(["dynamic", "static"]),
    help="Of other graphs than ort's, which take both. [default: dynamic]",
)
@click.option(
    "--cache-precision", type=click.Choice(get_args(CachePrecision)), help="Keep keys and values as integers."
)
@click.option("--functions", is_flag=True, help="Keep our ops in a portable graph, as functions of the model.")
@click.option(
    "--backend",
    type=click.Choice(get_args(Backend)),
    help="Export the module of this library, where there is no family here.",
)
@click.option(
    "--block", type=int, help="Of int4 and int8: inputs that share a scale. [default: 32 and 128; 128 with --calibrate]"
)
@click.option("--asymmetric", is_flag=True, help="Of int4 and int8: store a zero point for every block.")
@click.option(
    "--rounding",
    type=click.Choice(get_args(Rounding)),
    help="Of int4 and int8. [default: mse and nearest; gptq with --calibrate]",
)
@click.option(
    "--activations",
    type=click.Choice(["block", "per-token", "token"]),
    help="Of int8: which inputs of a product share a scale. For encoders, per-token is faster. [default: block]",
)
@click.option(
    "--calibrate",
    "calibration",
    type=click.Path(path_type=Path),
    metavar="TEXT",
    help="Round weights by a file of text like what the model is for.",
)
@click.option("--head-precision", type=click.Choice(["fp32", *DEFAULTS]), help="Of the head and the embeddings.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Do not quantize parameters of such names.")
@click.option(
    "--prefill",
    type=click.Choice(get_args(PrefillChoice)),
    help="Add a view for prompts over int8 weights. [default: the deployment's; none without one]",
)
@click.option("--smooth", is_flag=True, help="By the text of --calibrate, even out what is rounded token by token.")
@click.option("--context-length", type=int, help="Positions to provide for. [default: all that the model has]")
@click.option("--pooling", type=click.Choice(get_args(Pooling)), help="Make one vector of an encoder's states.")
@click.option("--normalize/--no-normalize", default=None, help="Give that vector length one, or not.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle that is already there.")
@click.option("--full-verify", is_flag=True, help="Verify as thoroughly as `edgeformer verify` does.")
@click.option("--no-verify", is_flag=True, help="Do not compare the graph with PyTorch.")
@click.option("--explain", "explained", is_flag=True, help="Say where each pass and rule fired, and why not elsewhere.")
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
    **options: Any,
) -> None:
    """Export a model to a bundle, and verify it."""
    if full_verify and no_verify:
        raise click.UsageError("--full-verify and --no-verify exclude each other.")
    overrides = QuantizationOverrides(
        block=block,
        symmetric=False if asymmetric else None,
        rounding=rounding,
        activations=None if activations is None else "block" if activations == "block" else "per_token",
        head=head_precision,
        keep=keep,
    )
    proposed = deployment is not None and (options["ops"], options["provider"]) == ("ort", "cpu")
    quantized = precision in DEFAULTS or (precision is None and proposed)
    if overrides != NO_OVERRIDES and not quantized:
        raise click.UsageError(
            "--block, --asymmetric, --rounding, --activations, --head-precision and --keep are for --precision int4 "
            "and int8."
        )
    from edgeformer.export import ExportOptions, export_model

    export_options = ExportOptions(
        deployment=deployment,
        precision=precision,
        quantization=None if overrides == NO_OVERRIDES else overrides,
        prefill=prefill,
        verify=None if no_verify else "full" if full_verify else "quick",
        **options,
    )
    with progress_bar() as progress:
        result = export_model(model, output, export_options, progress=progress)

    manifest, report = result.manifest, result.report
    size = sum(entry.bytes for entry in manifest.files.values())
    if as_json:
        print_json(
            {
                "bundle": str(result.path),
                "bytes": size,
                "target": manifest.deployment,
                "seconds": round(result.seconds, 2),
                "random_weights": manifest.random_weights,
                "passes": {
                    done.name: {"changed": done.changed, "missed": done.missed} for done in result.lowered.passes
                },
                "graphs": {name: asdict(lowered) for name, lowered in result.graphs.items()} if explained else None,
                "fallbacks": result.lowered.fallbacks,
                "parity": report.to_json() if report else None,
            }
        )
        return
    passes = ", ".join(f"{done.name} {done.changed}" for done in result.lowered.passes)
    click.echo(f"exported {manifest.source} to {result.path}: {size / 1e6:.1f} MB, {result.seconds:.1f} s")
    if manifest.deployment is not None:
        click.echo(f"target: {manifest.deployment}")
    click.echo(f"graph: {manifest.written_in}, {manifest.precision}; {passes}")
    if manifest.quantization is not None:
        click.echo(f"weights: {manifest.quantization}")
    if manifest.smoothing is not None:
        click.echo(f"smoothed: {manifest.smoothing}")
    if manifest.cache_scales is not None:
        click.echo(f"cache: int8, {manifest.cache.elements(1, 1):,} bytes a token")
    if manifest.prefill is not None:
        view = Path(manifest.prefill.graph).name
        click.echo(f"prompts of {manifest.prefill.from_tokens} tokens or more: {view}, {manifest.prefill.quantization}")
    if explained:
        for name, lowered in result.graphs.items():
            click.echo(explain(name, lowered))
    for fallback in result.lowered.fallbacks:
        click.echo(f"slower form: {fallback}")
    if report:
        click.echo(f"verified against {report.reference}, in {report.seconds:.1f} s:\n{report.describe()}")
        if (result.path / "parity").is_dir():
            click.echo(f"  certificate: {result.path / 'parity' / 'report.html'}")
    else:
        click.echo("not verified; do it with: edgeformer verify")
    if manifest.random_weights is not None:
        note(f"note: the weights of {model} are random, not trained. Its text will be noise.")
    from edgeformer.export.bundle.model_card import first_line

    click.echo(f"next: {first_line(manifest, result.path, result.path)}")
