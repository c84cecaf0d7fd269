"""edgeformer verify"""

from pathlib import Path

import click

from edgeformer.cli._output import json_option, print_json, print_table, progress_bar


@click.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--against", help="The model that it was exported from. [default: the weights in the bundle itself]")
@json_option
def verify_command(bundle: Path, against: str | None, as_json: bool) -> None:
    """Check the files of BUNDLE, and that its graph computes what PyTorch computes. Exits with 1 if it does not."""
    from edgeformer.export import verify

    with progress_bar() as progress:
        report = verify(bundle, against, progress=progress)
    if as_json:
        print_json(report.to_json())
    else:
        rows = [
            (check.name, f"{check.error:.1e}", f"{check.limit:.0e}", "ok" if check.passed else "FAIL", check.what)
            for check in report.checks
        ]
        click.echo(f"reference: {report.reference}; error: max |Δlogit| / max |logit|")
        print_table(rows, "check", "error", "limit", "", "what")
        click.echo("verified" if report.passed else "NOT verified: the graph computes something else")
    if not report.passed:
        raise SystemExit(1)
