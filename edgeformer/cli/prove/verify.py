"""edgeformer verify"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeformer.cli._options import OUTPUT, VERIFICATION, Command, cache_option, json_option, option
from edgeformer.cli._output import note, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from edgeformer.export.parity import Report


@click.command("verify", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--against", help="The model that it was exported from. [default: the model that the manifest names, if it is here]"
)
@option(
    "--merge-adapter", type=click.Path(path_type=Path), metavar="DIR",
    help="The LoRA adapter that was merged into that model.",
)  # fmt: skip
@option(
    "--provider", metavar="PROVIDER",
    help="Execution provider that runs the graphs, also by onnxruntime's name of one, such as "
    "OpenVINOExecutionProvider. [default: the one that BUNDLE is for]",
)  # fmt: skip
@option(
    "--plugin", type=click.Path(path_type=Path), metavar="LIBRARY",
    help="Register this library, which has PROVIDER, with onnxruntime.",
)  # fmt: skip
@cache_option
@option("--quick", is_flag=True, help="Run the checks that an export runs, instead of all.")
@option("--locate", is_flag=True, topic=VERIFICATION, help="Find the first node that computes something else.")
@option(
    "--certificate", type=click.Path(path_type=Path), topic=OUTPUT, metavar="FOLDER",
    help="Write report.json and report.html into this folder.",
)  # fmt: skip
@json_option
def verify_command(
    bundle: Path,
    against: str | None,
    merge_adapter: Path | None,
    provider: str | None,
    plugin: Path | None,
    cache_precision: str | None,
    quick: bool,
    locate: bool,
    certificate: Path | None,
    as_json: bool,
) -> None:
    """Check that BUNDLE computes what PyTorch computes.

    Checks the hashes of its files and of its certificate, too. Exits with 1 if a check fails. Without --against it is
    compared with the model that its manifest names: a preset, a folder beside BUNDLE or in the working directory, or
    what the local cache has of a hub id. Where none is found, it is compared with the weights that it holds itself,
    which may be wrong, and the verdict says so. With --against, BUNDLE may also be a folder or an ONNX file that
    another exporter made.
    """
    from edgeformer.export import verify
    from edgeformer.export.parity import find_checkpoint
    from edgeformer.runtime.sessions.providers.unproven import register_plugin
    from edgeformer.runtime.sessions.session import onnxruntime

    if plugin is not None:
        register_plugin(onnxruntime(), plugin)
    found = find_checkpoint(bundle, merge_adapter) if against is None else None
    against = against or found
    with progress_bar() as progress:
        report = verify(
            bundle,
            against,
            merge_adapter=merge_adapter,
            mode="quick" if quick else "full",
            provider=provider,
            cache_precision=cache_precision,
            progress=progress,
        )
        where = _locate(bundle, against, merge_adapter) if locate else None
    if certificate:
        from edgeformer.export.parity.certificate.page import write_certificate

        write_certificate(report, certificate, bundle.name)
        note(f"wrote {certificate / 'report.html'}")
    if as_json:
        print_json(report.to_json() | ({"located": where} if where else {}))
    else:
        _print(report, where, against, found)
    if not report.passed:
        raise SystemExit(1)


def _print(report: "Report", where: str | None, against: str | None, found: str | None) -> None:
    """Print a report. against: the checkpoint that it was compared with. found: the same, if nobody named it."""
    levels = report.kernel_checks()
    of_kernels = {check.name for checks in levels.values() for check in checks}
    rows = [
        (
            check.name, f"{check.value:.2g}", "" if check.eager is None else f"{check.eager:.2g}",
            f"{check.limit:.2g}", "ok" if check.passed else "FAIL",
        )
        for check in report.checks if not check.passed or check.name not in of_kernels
    ]  # fmt: skip
    orders = f", in {report.orders} summation orders" if report.orders > 1 else ""
    click.echo(f"reference: {report.reference}; eager: PyTorch with the rounding of the graph{orders}")
    if found:
        click.echo(f"checkpoint: {found}, as the manifest says; --against names another")
    print_table(rows, "check", "graph", "eager", "limit", "")
    if report.greedy.steps:  # encoders write nothing
        click.echo(report.greedy.describe())
    if report.unproved is not None:
        click.echo(f"{report.unproved[0]}: {report.unproved[1]}.")
    if "kernels" in report.environment:
        click.echo(f"kernels: {report.environment['kernels']}")
    for level, checks in levels.items():
        click.echo(f"  {level}: {sum(check.passed for check in checks)} of {len(checks)} checks passed")
    if report.only_kernels_failed:
        click.echo("The graph is right by itself. EDGEFORMER_KERNELS=0 or load(kernels=False) runs it without kernels.")
    if where:
        click.echo(where)
    failed = len(report.failures())
    verdict = f"NOT verified: {failed} of {len(report.checks)} checks failed" if failed else "verified"
    unknown = "" if against else "; its weights were not compared with a checkpoint, which --against MODEL does"
    click.echo(f"{verdict} ({report.seconds:.1f} s){unknown}")


def _locate(bundle: Path, against: str | None, adapter: Path | None) -> str:
    """Return a sentence that names the first node whose values differ from PyTorch's."""
    from edgeformer.export.parity import open_subject
    from edgeformer.export.parity.locate.locator import describe, locate

    subject = open_subject(bundle, against, adapter=adapter)
    return describe(locate(subject.folder, subject.manifest, subject.model_spec, subject.weights))
