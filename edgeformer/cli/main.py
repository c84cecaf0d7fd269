"""The command `edgeformer`."""

import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import click

from edgeformer import __version__
from edgeformer.cli.bench import bench_command
from edgeformer.cli.check import check_command
from edgeformer.cli.embed import embed_command
from edgeformer.cli.eval import eval_command
from edgeformer.cli.export import export_command
from edgeformer.cli.info import info_command
from edgeformer.cli.models import models_command
from edgeformer.cli.optimize import optimize_command
from edgeformer.cli.run import run_command
from edgeformer.cli.verify import verify_command
from edgeformer.errors import EdgeformerError


class _Group(click.Group):
    """Shows an EdgeformerError as its message alone, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EdgeformerError as error:
            if ctx.params["debug"]:
                raise
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Export transformers to ONNX, run them without PyTorch, and verify that both compute the same."""


for command in (
    export_command, run_command, embed_command, bench_command, eval_command, optimize_command, verify_command,
    check_command, info_command, models_command
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    # A terminated export must clean up like an interrupted one.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    cli()


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
