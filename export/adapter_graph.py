"""The graph that takes LoRA adapters as inputs, and the files of the adapters, beside a decoder's own graph."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from edgeformer.export.graph.tensors import TORCH_PRECISIONS
from edgeformer.export.graph_folder import GraphFolder
from edgeformer.export.importers.opened_model import OpenedAdapter
from edgeformer.export.lower.ort.low_rank import A, B, pack, sites
from edgeformer.lora.adapter_tensors import Update
from edgeformer.manifest.graph_forms import FORMS, AdapterGraph
from edgeformer.manifest.parts import BundledAdapter

ADAPTER_GRAPH = FORMS["adapters"].file
FOLDER = "adapters"


def write_adapter_graph(out: GraphFolder) -> AdapterGraph:
    """Write the graph whose products take what adapters change as inputs; it reads the weights of the decode graph,
    which are written already.

    Raises ExportError for a parameter whose product cannot take an adapter.
    """
    out.progress("adding inputs for adapters", 0)
    spec = out.job.model_spec.graphs[-1]
    graph = out.job.captured(spec)
    out.lowered[ADAPTER_GRAPH] = out.job.lower(graph, spec, adapted=True)
    found = sites(graph)
    out.writer.write_again(graph, ADAPTER_GRAPH)
    return AdapterGraph(file=ADAPTER_GRAPH, sites=found)


def write_adapters(
    out: GraphFolder, graph: AdapterGraph, adapters: Sequence[OpenedAdapter]
) -> tuple[BundledAdapter, ...]:
    """Write the inputs of each adapter into a file of its own."""
    shapes, dtype = out.job.model_spec.parameter_shapes(), TORCH_PRECISIONS[out.job.plan.arithmetic]
    (out.folder / FOLDER).mkdir()
    written = []
    for adapter in adapters:
        tensors: dict[str, Tensor] = {}
        for name, site in graph.sites.items():
            parts = pack(site, adapter.updates, shapes)
            tensors |= {f"{name}.{part}": each.to(dtype).contiguous() for part, each in zip((A, B), parts, strict=True)}
        file = f"{FOLDER}/{adapter.name}.safetensors"
        (out.folder / file).write_bytes(save(tensors))
        written.append(BundledAdapter(name=adapter.name, file=file, origin=adapter.origin))
    return tuple(written)


def write_widened_adapters(folder: Path, source: Path, adapters: Sequence[BundledAdapter]) -> None:
    """Write the files of a bundle's adapters in float32, for the twin of its adapter graph. source: the bundle."""
    (folder / FOLDER).mkdir()
    for adapter in adapters:
        tensors = load_file(source / adapter.file)
        (folder / adapter.file).write_bytes(save({name: tensor.float() for name, tensor in tensors.items()}))


def stored_updates(
    graph: AdapterGraph, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Update]:
    """Return what the inputs of an adapter add to each parameter; tensors: by the names of the inputs."""
    updates: dict[str, Update] = {}
    for name, site in graph.sites.items():
        a, b = tensors[f"{name}.{A}"][0].double().t(), tensors[f"{name}.{B}"][0].double()
        if site.scaled is not None:
            b = torch.cat([b[:, : site.scaled.outputs] / site.scaled.factor, b[:, site.scaled.outputs :]], 1)
        sizes = [shapes[parameter][0 if site.transposed else -1] for parameter in site.parameters]
        parts = zip(site.parameters, b.split(sizes, 1), strict=True)
        updates |= {parameter: Update(a, part.t()) for parameter, part in parts}
    return updates
