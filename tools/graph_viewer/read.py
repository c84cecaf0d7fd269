"""Find the graph that a path refers to, and read it without its weights."""

from pathlib import Path

import click
import onnx
from google.protobuf.message import DecodeError

from edgeformer.errors import BundleError
from edgeformer.manifest.manifest import FILE_NAME, Manifest


def find_graph(path: Path, name: str | None = None) -> Path:
    """Return the file of a graph: `path` itself, or the graph of the bundle there.

    name: which graph of a bundle that has several: its file name, with or without folder and suffix. Raises
    ClickException with the choices if the name is needed and missing, or does not exist.
    """
    if not path.exists():
        raise click.ClickException(f"there is no file or folder {path}.")
    if path.is_file():
        return path
    if not (path / FILE_NAME).is_file():
        graphs = sorted(str(graph) for graph in path.rglob("*.onnx"))
        instead = f"Name one of its graphs: {', '.join(graphs)}" if graphs else "Name an ONNX file or a bundle."
        raise click.ClickException(f"{path} is not a bundle: it has no {FILE_NAME}. {instead}")
    try:
        graphs = list(Manifest.read(path).step_graphs)
    except BundleError as error:
        raise click.ClickException(str(error)) from None
    missing = [graph for graph in graphs if not (path / graph).is_file()]
    if missing:
        raise click.ClickException(f"the bundle {path} is damaged: {', '.join(missing)} is missing.")
    choices = ", ".join(Path(graph).stem for graph in graphs)
    if name is None:
        if len(graphs) > 1:
            raise click.ClickException(f"the bundle {path} has several graphs. Choose with --graph: {choices}")
        return path / graphs[0]
    for graph in graphs:
        if name in (graph, Path(graph).name, Path(graph).stem):
            return path / graph
    raise click.ClickException(f"the bundle {path} has no graph {name!r}. Choose with --graph: {choices}")


def read_graph(path: Path) -> onnx.ModelProto:
    """Read a file without external tensors. Raises ClickException if it is not an ONNX model."""
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError:
        model = onnx.ModelProto()
    # Protobuf also parses many files of other formats, and every empty file.
    if not model.HasField("graph") or not model.ir_version:
        raise click.ClickException(f"{path} is not an ONNX file.")
    return model


def label_of(path: Path, file: Path) -> str:
    """Return the label of a graph: its file's name, or its bundle's name if a bundle was given."""
    name = path.resolve().name
    return name if path == file or len(Manifest.read(path).step_graphs) == 1 else f"{name}/{file.stem}"
