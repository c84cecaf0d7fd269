"""edgeformer check"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import click

from edgeformer.check import CheckReport, Finding, check
from edgeformer.check.client_rules import CLIENTS
from edgeformer.check.providers import ProviderAudit
from edgeformer.check.published import OPERATOR_TABLES, OperatorAudit
from edgeformer.cli._options import Command, json_option, option
from edgeformer.cli._output import print_json, print_table
from edgeformer.manifest.providers import PROVIDERS

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
@option(
    "--provider",
    type=click.Choice([*PROVIDERS, *OPERATOR_TABLES]),
    default="cpu",
    show_default=True,
    help="With cuda or webgpu, exit with 1 if that provider lacks a kernel for a node in a layer. Takes no GPU. "
    f"With {', '.join(OPERATOR_TABLES)}, count the nodes whose operators that provider publishes.",
)
@json_option
def check_command(bundle: Path, clients: Sequence[str], provider: str, as_json: bool) -> None:
    """Say which clients will load BUNDLE, and why one won't.

    It also says whether each runs edgeformer's own kernels, and what to do so that it does. Reads no weights and runs
    nothing. Exits with 1 if BUNDLE breaks the contract, or a client named with --client will not load it. BUNDLE may
    also be a folder that another exporter made.
    """
    report = check(bundle, provider)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report, clients)
    broken = not report.keeps_contract or any(report.verdict(name) != "loads" for name in clients)
    if broken or (report.audit is not None and report.audit.verdict == "does not load"):
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
        click.echo("kernels or bodies of the graph's functions:")
        _print_indented(", ".join(report.functions))
        for name in shown:
            _print_indented(f"{name}: {report.kernels[name]}")
    if report.audit is not None:
        _print_audit(report.audit)
    if report.operators is not None:
        _print_operators(report.operators)


def _print_audit(audit: ProviderAudit) -> None:
    click.echo()
    provider = PROVIDERS[audit.provider].title
    rows = [(each.file, str(each.on_device), _counts(each.shapes), _counts(each.on_cpu)) for each in audit.graphs]
    print_table(rows, provider, "nodes on the GPU", "shapes, on the CPU", "no kernel, outside of layers")
    click.echo(f"kernels: {audit.package}, onnxruntime {audit.onnxruntime}")
    _print_findings(audit.findings)
    if audit.verdict == "loads":
        click.echo(f"Every node of every layer has a {provider} kernel.")


def _print_operators(audit: OperatorAudit) -> None:
    click.echo()
    rows = [
        (each.file, f"{sum(each.taken.values())} of {sum(each.taken.values()) + sum(each.left.values())}",
         _counts(each.left))
        for each in audit.graphs
    ]  # fmt: skip
    print_table(rows, audit.title, "nodes of published operators", "others, which run on the CPU")
    limits = {name: limit for graph in audit.graphs for name, limit in graph.limits.items()}
    for name, limit in limits.items():
        _print_indented(f"{name}: {limit}")
    click.echo(f"operators: {audit.source} at {audit.commit[:12]}")
    click.echo("Types, shapes and limits were not compared, and nothing was run.")


def _counts(ops: dict[str, int]) -> str:
    return ", ".join(f"{op} {count}" for op, count in ops.items()) or "none"


def _print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        _print_indented(f"{finding.severity}: {finding}")


def _print_indented(text: str) -> None:
    click.echo(fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
