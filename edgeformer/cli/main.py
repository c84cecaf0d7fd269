"""The command `edgeformer`. Each subcommand is imported when it is used, so that help and small commands start fast."""

import importlib
import warnings
from dataclasses import dataclass
from typing import Any, TextIO

import click

from edgeformer import __version__
from edgeformer.cli._options import OWN_PROCESS, warn, write_sections
from edgeformer.errors import EdgeformerError


@dataclass(frozen=True)
class Entry:
    """A subcommand in the help of `edgeformer`, which does not import it.

    Attributes:
        section: title of its section.
        summary: first line of its help.
    """

    section: str
    summary: str

    @property
    def folder(self) -> str:
        """Return the name of the folder that holds the command's file."""
        return self.section.lower().replace(" ", "_")


COMMANDS = {
    "export": Entry("Make", "Export a model to a bundle, and verify it."),
    "optimize": Entry("Make", "Let BUNDLE load faster and take less memory on this machine."),
    "run": Entry("Run", "Run the model in BUNDLE on PROMPT (or standard input)."),
    "chat": Entry("Run", "Chat with the model in BUNDLE on the terminal."),
    "embed": Entry("Run", "Turn TEXTS into vectors with the encoder in BUNDLE."),
    "score": Entry("Run", "Score how FIRST and SECOND belong together, with the cross-encoder in BUNDLE."),
    "rank": Entry("Run", "Rank DOCUMENTS as answers to QUERY with the encoder in BUNDLE."),
    "serve": Entry("Run", "Serve BUNDLEs over the APIs of OpenAI and Anthropic."),
    "batch": Entry("Run", "Run the model in BUNDLE on all rows of INPUT, on one machine or many."),
    "bench": Entry("Measure", "Measure how fast BUNDLE runs here."),
    "eval": Entry("Measure", "Score the answers of BUNDLE, or its perplexity of a text."),
    "info": Entry("Measure", "Show the parameters, bytes and FLOPs of a model or bundle."),
    "verify": Entry("Prove", "Check that BUNDLE computes what PyTorch computes."),
    "check": Entry("Prove", "Say which clients will load BUNDLE, and why one won't."),
    "models": Entry("Look up", "List the presets and the model families that can be exported."),
}
"""All subcommands; NAME is implemented by `NAME_command` in NAME.py, in the folder of its section of the help."""


class _Group(click.Group):
    """A group that imports a subcommand when it is used, and that prints an EdgeformerError as one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"edgeformer.cli.{COMMANDS[cmd_name].folder}.{cmd_name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in COMMANDS.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        write_sections(formatter, sections)

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


def main() -> None:
    """Run the command line in a process whose signals somebody else handles, as `edgeformer.cli.start` does."""
    warnings.showwarning = _show_warning
    cli(obj=OWN_PROCESS)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a Python warning as one line of the command line, without the place in the code that Python adds."""
    warn(str(message))
