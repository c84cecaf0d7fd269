"""edgeformer export"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._declared import Kinds, declare, explicit_values
from edgeformer.cli._options import OUTPUT, OWN_PROCESS, Command, json_option, option
from edgeformer.cli._output import note, print_json, progress_bar
from edgeformer.cli.make._explain import explain
from edgeformer.documents.option import options_of
from edgeformer.manifest.accounting import cache_element_bytes
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import Activations, QuantizationOverrides
from edgeformer.options.export import OPTIONS, Adapters, Calibration, ExportOptions, Folder, Size

if TYPE_CHECKING:  # edgeformer.export imports torch
    from edgeformer.export import ExportResult


class ActivationsChoice(click.Choice[str]):
    """The choices of --activations, spelled with a dash."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the choice as `QuantizationOverrides` has it."""
        return super().convert(value, param, ctx).replace("-", "_")


PATH: dict[str, Any] = {"type": click.Path(path_type=Path)}
SEVERAL = {"multiple": True}
KINDS: Kinds = {
    Calibration: PATH, Folder: PATH, Size: {}, Adapters: SEVERAL, tuple[str, ...]: SEVERAL,
    Activations: {"type": ActivationsChoice(["block", "per-token"])},
}  # fmt: skip

OVERRIDES = tuple(options_of(QuantizationOverrides))
PARTS = {"quantization": OVERRIDES}
"""Options that the command line has in parts."""


@click.command("export", cls=Command)
@option("--model", required=True, help="A preset (see `edgeformer models`), a model folder, a GGUF file, or a hub id.")
@option("--output", "-o", type=click.Path(path_type=Path), help="Bundle folder to make. [default: ./NAME]")
@declare([part for each in OPTIONS.values() for part in PARTS.get(each.name, (each,))], KINDS)
@option(
    "--explain", "explained", is_flag=True, topic=OUTPUT,
    help="Show where each pass and rule fired, and why not elsewhere.",
)  # fmt: skip
@json_option
@click.pass_context
def export_command(
    ctx: click.Context, /, model: str, output: Path | None, explained: bool, as_json: bool, **params: Any
) -> None:
    """Export a model to a bundle, and verify it."""
    from edgeformer.export import export_model
    from edgeformer.export.api import export_comparing_apart

    options = explicit_values(OPTIONS.values(), params)
    if "adapters" in options:
        options["adapters"] = _adapters(options["adapters"])
    if overrides := explicit_values(OVERRIDES, params):
        options["quantization"] = QuantizationOverrides(**overrides)
    export_options = ExportOptions(**options)
    with progress_bar() as progress:
        if ctx.obj == OWN_PROCESS:
            result = export_comparing_apart(model, output, export_options, progress)
        else:
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
    manifest, report, origin = result.manifest, result.report, result.manifest.provenance
    passes = {done.name: {"changed": done.changed, "missed": done.missed} for done in result.lowered.passes}
    return {
        "bundle": str(result.path),
        "bytes": _size(manifest),
        "deployment": manifest.plan.deployment,
        "backend": origin.backend,
        "text_model_of": origin.text_model_of and asdict(origin.text_model_of),
        "left_out": [asdict(each) for each in origin.left_out or ()],
        "merged_adapter": origin.merged_adapter and asdict(origin.merged_adapter),
        "adapters": [asdict(adapter) for adapter in manifest.adapters],
        "seconds": round(result.seconds, 2),
        "random_weights": origin.random_weights,
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
    for each in origin.left_out or ():
        click.echo(f"left out: {each}")
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
    if manifest.plan.cache_precision is not None:
        per_token = manifest.cache.elements_per_token * cache_element_bytes(manifest).tokens
        click.echo(f"cache: {manifest.plan.cache_precision}, {per_token:,} bytes per token")
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
