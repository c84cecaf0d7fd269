"""List, count, compare and draw ONNX graphs.

    python tools/graph_viewer/graph.py dump BUNDLE --match blocks.0.attention
    python tools/graph_viewer/graph.py ops BUNDLE OTHER.onnx
    python tools/graph_viewer/graph.py diff BEFORE.onnx AFTER.onnx
    python tools/graph_viewer/graph.py draw BUNDLE --block 0 -o block.png

A graph is an ONNX file or an edgeformer bundle; `--graph` selects one of a bundle that has several. Weights are not
read, because types, shapes and sizes are in the graph itself.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import onnx
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from graph_viewer.block import block_of, block_prefix
from graph_viewer.counting import count_ops, notes, table
from graph_viewer.difference import difference
from graph_viewer.listing import entries
from graph_viewer.read import find_graph, label_of, read_graph

COLOURS = {"-": "red", "+": "green"}
NARROWEST = 80
SUFFIXES = (".png", ".svg")

GRAPH = click.Path(path_type=Path)
which = click.option("--graph", "name", help="Graph of a bundle that has several, such as decoder_model.")


def _read(paths: Sequence[Path], name: str | None) -> list[tuple[Path, onnx.ModelProto]]:
    """Return files and models. Raises UsageError if `name` is given and none of the paths is a bundle."""
    if name is not None and not any(path.is_dir() for path in paths):
        raise click.UsageError(f"--graph {name} selects a graph of a bundle, and {paths[0]} is not a bundle.")
    files = [find_graph(path, name) for path in paths]
    return [(file, read_graph(file)) for file in files]


@click.group(help=(__doc__ or "").split("\n")[0], context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Select a subcommand."""


@main.command()
@click.argument("path", metavar="GRAPH", type=GRAPH)
@which
@click.option("--match", help="Only lines that contain this text.")
@click.option(
    "--width", type=click.IntRange(min=20), help="Columns to wrap lines at. [default: the terminal's; none in a pipe]"
)
def dump(path: Path, name: str | None, match: str | None, width: int | None) -> None:
    """List everything in a graph, one line each."""
    ((file, model),) = _read([path], name)
    if width is None and sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns, NARROWEST)
    found = [entry for entry in entries(model) if match is None or entry.contains(match)]
    if not found:
        raise click.ClickException(f"nothing in {file} has {match!r} in its line.")
    for entry in found:
        for line in entry.lines(width):
            click.echo(line)


@main.command()
@click.argument("paths", metavar="GRAPH…", type=GRAPH, nargs=-1, required=True)
@which
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def ops(paths: tuple[Path, ...], name: str | None, as_json: bool) -> None:
    """Count nodes by op, and the bytes of the parameters that they read, for several graphs side by side."""
    read = _read(paths, name)
    labels = [label_of(path, file) for path, (file, _) in zip(paths, read, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [str(file) for file, _ in read]
    counts = {label: count_ops(model) for label, (_, model) in zip(labels, read, strict=True)}
    if as_json:
        click.echo(json.dumps({label: count.to_json() for label, count in counts.items()}, indent=1))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=10_000)  # wide enough that no column is cut in a pipe
    console.print(table(counts))
    for note in notes(counts):
        click.echo(note)


@main.command()
@click.argument("first", metavar="A", type=GRAPH)
@click.argument("second", metavar="B", type=GRAPH)
@which
@click.option(
    "--context", type=click.IntRange(min=0), default=2, show_default=True, help="Unchanged nodes shown around a change."
)
def diff(first: Path, second: Path, name: str | None, context: int) -> None:
    """Compare the structure of two graphs, ignoring the names of values; exits with 1 if they differ.

    Weights are compared by value if both graphs hold them, and by name if they are stored in another file.
    """
    (file, ours), (other, theirs) = _read([first, second], name)
    hunks = list(difference(ours, theirs, context))
    if not hunks:
        click.echo("no difference")
        return
    click.secho(f"--- {file}\n+++ {other}", bold=True)
    for hunk in hunks:
        click.secho(f"@@ {hunk.where} @@", fg="cyan")
        for line in hunk.lines:
            click.secho(f"{line.mark} {line.text}", fg=COLOURS.get(line.mark))
    sys.exit(1)


@main.command()
@click.argument("path", metavar="GRAPH", type=GRAPH)
@which
@click.option("--block", type=click.IntRange(min=0), help="Nodes of blocks.N, counted from 0.")
@click.option("--match", help="Nodes whose names start with this, instead of a block.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A .png or .svg file."
)
def draw(path: Path, name: str | None, block: int | None, match: str | None, output: Path) -> None:
    """Draw one block as a picture: nodes with their weights, and shapes where they are known."""
    if (block is None) == (match is None):
        raise click.UsageError("give either --block or --match.")
    if output.suffix not in SUFFIXES:
        raise click.UsageError(f"{output} is not a picture: its name must end with one of: {', '.join(SUFFIXES)}")
    if not output.parent.is_dir():
        raise click.UsageError(f"there is no folder {output.parent}.")
    ((file, model),) = _read([path], name)
    prefix = match or block_prefix(model.graph, block or 0)
    part = block_of(model, prefix)
    # matplotlib is slow to import; the other subcommands do not need it.
    from graph_viewer.picture import TooLargeError
    from graph_viewer.picture import draw as draw_block

    try:
        draw_block(part, f"{prefix.rstrip('./')} of {label_of(path, file)}: {part.nodes} nodes", output)
    except TooLargeError as error:
        raise click.ClickException(f"{error} Choose fewer with --match.") from None
    click.echo(f"{output}: {part.nodes} nodes")


if __name__ == "__main__":
    main()
