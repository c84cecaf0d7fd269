"""edgeformer check"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import click

from edgeformer.check import CheckReport, Finding, check
from edgeformer.check.clients import CLIENTS
from edgeformer.cli._options import Command, json_option, option
from edgeformer.cli._output import print_json, print_table

WIDTH = 80
"""Columns of the text of findings."""


@click.command("check", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--client",
    "clients",
    type=click.Choice(list(CLIENTS)),
    multiple=True,
    metavar="CLIENT",
    help=f"Exit with 1 if this client will not load it; may be given several times. One of {', '.join(CLIENTS)}.",
)
@json_option
def check_command(bundle: Path, clients: Sequence[str], as_json: bool) -> None:
    """Say which clients will load BUNDLE, and why one won't.

    It also says whether each runs edgeformer's own kernels, and what to do so that it does. Reads no weights and runs
    nothing. Exits with 1 if BUNDLE breaks the contract, or a client named with --client will not load it. BUNDLE may
    also be a folder that another exporter made.
    """
    report = check(bundle)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report, clients)
    if not report.keeps_contract or any(report.verdict(name) != "loads" for name in clients):
        raise SystemExit(1)


def _print(report: CheckReport, clients: Sequence[str]) -> None:
    shown = {name: findings for name, findings in report.clients.items() if not clients or name in clients}
    print_table([(name, report.verdict(name), CLIENTS[name].what) for name in shown], "client", "", "")
    click.echo()
    click.echo(f"contract of {report.folder}: {'kept' if report.keeps_contract else 'broken'}")
    _print_findings(report.contract)
    for name, findings in shown.items():
        own = [finding for finding in findings if finding not in report.contract]
        if own:
            click.echo(name)
            _print_findings(own)
    if report.functions:
        click.echo(f"kernels or bodies of the graph's functions: {', '.join(report.functions)}")
        for name in shown:
            _print_indented(f"{name}: {report.kernels[name]}")


def _print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        _print_indented(f"{finding.severity}: {finding}")


def _print_indented(text: str) -> None:
    click.echo(fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
