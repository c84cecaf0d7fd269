"""Open the graphs of a bundle: the prepacked ones, where there are any for this machine.

    BUNDLE/prepacked/KEY/model.onnx, model.onnx_data …

onnxruntime rearranges ("prepacks") weights for the processor whenever it opens a graph, into memory of each process.
Prepacked graphs, which `prepack.optimize` writes once, hold them rearranged, so that they are mapped from the disk
instead. The key is a hash of the processor, the version of onnxruntime, the graphs, and the kernels of edgeformer that
run in them; where no folder has the key, or `optimize` did not write it for this user (`prepacked_record.py`), the
bundle's own graphs are opened.
"""

import hashlib
import json
import platform
import warnings
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from edgeformer.errors import BundleError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import Provider
from edgeformer.runtime.sessions.graphs.graph_functions import function_calls
from edgeformer.runtime.sessions.graphs.int8_cache import open_over
from edgeformer.runtime.sessions.kernels import CONTRACT, KernelChoice
from edgeformer.runtime.sessions.prepacked.prepacked_record import is_remembered
from edgeformer.runtime.sessions.providers.provider_options import ProviderOptions
from edgeformer.runtime.sessions.session import onnxruntime

FOLDER = "prepacked"
"""Folder of a bundle that has the prepacked graphs of all machines."""


def open_graph(
    folder: Path,
    manifest: Manifest,
    graph: str,
    provider: Provider,
    threads: int | None,
    kernels: KernelChoice,
    options: ProviderOptions | None,
) -> Any:
    """Open a session of a graph of a bundle, or of its prepacked copy if there is one for this machine.

    graph: path within the folder. threads: None for all usable cores. kernels: edgeformer's own, for functions of the
    graph. options: of the provider. Raises BundleError if it cannot be loaded.
    """
    file = graph_file(folder, manifest, graph, kernels) if provider.prepacked else folder / graph
    try:
        return open_over(file, manifest, provider, threads, kernels=kernels, options=options)
    except BundleError as error:
        if file == folder / graph:
            raise
        advice = f"Remove the prepacked graphs with: edgeformer optimize {folder} --remove"
        raise BundleError(f"{error}\n{advice}") from error


def graph_file(folder: Path, manifest: Manifest, graph: str, kernels: KernelChoice) -> Path:
    """Return the file that a session on the CPU opens for a graph: its prepacked copy if there is one here.

    Warns of prepacked graphs that `optimize` did not write for this user, and leaves them alone.
    """
    if not (folder / FOLDER).is_dir():
        return folder / graph
    prepacked = prepacked_folder(folder, manifest, kernels)
    if not (prepacked / PurePosixPath(graph).name).is_file():
        return folder / graph
    if not is_remembered(prepacked):
        warnings.warn(
            f"the prepacked graphs in {prepacked} were not written here by this user, or were changed since, so they "
            f"are not used. Write them again with: edgeformer optimize {folder}",
            stacklevel=2,
        )
        return folder / graph
    return prepacked / PurePosixPath(graph).name


def opened_graphs(manifest: Manifest) -> list[str]:
    """Return the graphs that the runtime opens, as paths within the bundle."""
    return list(manifest.prepacked_graphs)


def prepacked_folder(folder: Path, manifest: Manifest, kernels: KernelChoice) -> Path:
    """Return the folder for the prepacked graphs of a bundle on this machine, which may not exist.

    kernels: those that run in the graphs, whose weights are packed for them.
    """
    known: dict[str, Any] = {"graphs": manifest.graph_hashes(), "onnxruntime": onnxruntime().__version__}
    known["processor"] = processor()
    if kernels.library is not None:
        calls = [function_calls(folder / graph).split(kernels.library.ops)[0] for graph in opened_graphs(manifest)]
        if ops := sorted(set().union(*calls)):
            known["kernels"] = {"contract": CONTRACT, "ops": ops, "panels": kernels.panels}
    return folder / FOLDER / hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


@cache
def processor() -> str:
    """Return a text that differs between processors with different kernels: architecture and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})])
