"""Write an ONNX graph as Graphviz dot, with a cluster for each layer.

    python tools/graph_dot.py tiny-llama/onnx/model.onnx --layer 1 | dot -Tsvg > layer.svg

A box is a node; its label is the op, the rest of its name, and the weights that it reads. An ellipse is an input or an
output of the graph, an edge is a tensor. Bodies of If, Loop and Scan are not drawn; the outer tensors that they read
are edges to their node. For attributes, shapes and searching, open the file in Netron (https://netron.app).
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import onnx

LAYER = re.compile(r"(?:.*\.)?(?:blocks|layers?)\.(\d+)(?=[./])")
"""The start of the names of a layer's nodes: `blocks.0.` or `decoder.blocks.0/`."""


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of all tensors that a node and the bodies inside it read."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs]:
            for inner in body.node:
                yield from tensors_read(inner)
            yield from (output.name for output in body.output)


def dot(graph: onnx.GraphProto, layer: int | None = None) -> str:
    """Return a graph, or one layer of it, as dot. Tensors that enter or leave the layer are ellipses."""
    weights = {tensor.name for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    inputs = {value.name for value in graph.input} - weights
    clusters: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        found = LAYER.match(node.name)
        if layer is None or (found and int(found[1]) == layer):
            clusters[found[0] if found else ""].append(index)
    drawn = [index for indexes in clusters.values() for index in indexes]
    maker = {name: f"n{index}" for index in drawn for name in graph.node[index].output if name}

    lines = ["digraph {", "  node [shape=box, fontname=Helvetica]"]
    for number, (prefix, indexes) in enumerate(clusters.items()):
        boxes = [_box(graph.node[index], index, prefix, weights) for index in indexes]
        if prefix:
            boxes = [f"subgraph cluster_{number} {{ label={json.dumps(prefix)}", *boxes, "}"]
        lines += [f"  {line}" for line in boxes]
    ellipses: dict[str, str] = {}
    for index in drawn:
        for name in dict.fromkeys(tensors_read(graph.node[index])):
            if name in maker:
                lines.append(f"  {maker[name]} -> n{index}")
            elif name in inputs or (layer is not None and name not in weights):
                lines.append(f"  {ellipses.setdefault(name, f'e{len(ellipses)}')} -> n{index}")
    leaving = {value.name for value in graph.output}
    if layer is not None:
        outside = set(range(len(graph.node))) - set(drawn)
        leaving |= {name for index in outside for name in tensors_read(graph.node[index])}
    for name in (name for name in maker if name in leaving):
        lines.append(f"  {maker[name]} -> {ellipses.setdefault(name, f'e{len(ellipses)}')}")
    lines += [f"  {ellipse} [shape=ellipse, label={json.dumps(name)}]" for name, ellipse in ellipses.items()]
    return "\n".join([*lines, "}\n"])


def _box(node: onnx.NodeProto, index: int, prefix: str, weights: set[str]) -> str:
    """Return the declaration of a node."""
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    read = [name.removeprefix(prefix) for name in node.input if name in weights]
    return f"n{index} [label={json.dumps(chr(10).join([op, node.name.removeprefix(prefix), *read]))}]"


@click.command(help=__doc__)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--layer", type=click.IntRange(min=0), help="Draw this layer alone.")
def main(file: Path, layer: int | None) -> None:
    """Write the graph of a file to stdout."""
    graph = onnx.load(file, load_external_data=False).graph
    if layer is not None and not any(
        (found := LAYER.match(node.name)) and int(found[1]) == layer for node in graph.node
    ):
        raise click.ClickException(f"{file} has no nodes of a layer {layer}.")
    sys.stdout.write(dot(graph, layer))


if __name__ == "__main__":
    main()
