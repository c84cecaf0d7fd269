"""Graphs as this machine loads them fastest: optimised already, with weights as its kernels read them.

    BUNDLE/prepacked/KEY/model.onnx, model.onnx_data …

onnxruntime rearranges weights for the processor whenever it opens a graph, into memory of every process's own. Written
down once (`edgeformer optimize`), they are mapped from the disk instead. The key speaks of the processor, of
onnxruntime and of the graphs; under another key nothing is found, and the bundle's own graphs are opened.
"""

import hashlib
import json
import platform
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from edgeformer.errors import BundleError
from edgeformer.manifest import Manifest, Provider
from edgeformer.runtime.session import onnxruntime, open_session

FOLDER = "prepacked"


def open_graph(folder: Path, manifest: Manifest, graph: str, provider: Provider, threads: int | None) -> Any:
    """Open a session of one of a bundle's graphs: the prepacked one, where there is one for this machine."""
    prepacked = place(folder, manifest) / PurePosixPath(graph).name
    if provider != "cpu" or not prepacked.is_file():
        return open_session(folder / graph, provider, threads)
    try:
        return open_session(prepacked, provider, threads)
    except BundleError as error:
        advice = f"Remove the prepacked graphs with: edgeformer optimize {folder} --remove"
        raise BundleError(f"{error}\n{advice}") from error


def opened_graphs(manifest: Manifest) -> list[str]:
    """The graphs that the runtime opens."""
    view = None if manifest.prefill is None else manifest.prefill.graph
    return [graph for graph in (manifest.encoder_graph, manifest.graphs[-1], view) if graph is not None]


def place(folder: Path, manifest: Manifest) -> Path:
    """Where the prepacked graphs of a bundle are on this machine, if they are."""
    known = {"graphs": manifest.graph_hashes(), "onnxruntime": onnxruntime().__version__, "processor": processor()}
    return folder / FOLDER / hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


@cache
def processor() -> str:
    """What tells processors with other kernels apart: the architecture, and the instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})])
