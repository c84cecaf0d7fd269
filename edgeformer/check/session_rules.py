"""Rules of onnxruntime's session, with which every client opens graphs: versions, ops, files of weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgeformer.check.finding import Finding, error, unknown, warning
from edgeformer.check.folder import Folder
from edgeformer.check.graph_facts import ONNX_DOMAINS, GraphFacts
from edgeformer.contract.ops import CONTRIB


@dataclass(frozen=True)
class Release:
    """A release of onnxruntime, and the latest ONNX IR version and opset that it reads."""

    name: str
    max_ir: int
    max_opset: int


# The newest release of each package that clients open graphs with; the limits were found by opening graphs with it.
CPU = Release("onnxruntime 1.32.0", 14, 28)
GPU = Release("onnxruntime-gpu 1.31.1", 13, 26)
NODE = Release("onnxruntime-node 1.30.0", 13, 26)
"""In Node under transformers.js 4.3.2."""
WEB = Release("onnxruntime-web 1.31.0-dev", 13, 26)
"""In browsers under transformers.js 4.3.2."""

DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml", CONTRIB, "com.microsoft.nchwc")


def session_findings(folder: Folder, graph: GraphFacts, release: Release = CPU) -> Iterator[Finding]:
    """Yield what keeps a release of onnxruntime from opening a graph in this folder."""
    yield from version_findings(graph.file, graph.ir_version, graph.opsets, release)
    known = {*DOMAINS, *(domain for domain, _ in graph.functions)}
    foreign = sorted({f"{domain}::{op}" for domain, op in graph.ops if domain not in known})
    if foreign:
        yield unknown(
            f"{graph.file} has ops of another library: {_some(foreign)}.",
            "It loads only where that library is registered with the session.",
        )
    yield from _data(folder, graph)


def version_findings(file: str, ir_version: int, opsets: Mapping[str, int], release: Release) -> Iterator[Finding]:
    """Yield versions of a graph that a release of onnxruntime is too old for. opsets: versions by domain."""
    if ir_version > release.max_ir:
        yield error(
            f"{file} has ONNX IR version {ir_version}, and {release.name} reads up to {release.max_ir}.",
            f"Set model.ir_version = {release.max_ir} with the package onnx, and save it.",
        )
    for domain in ONNX_DOMAINS:
        if opsets.get(domain, 0) > release.max_opset:
            yield error(
                f"{file} has opset {opsets[domain]}, and {release.name} knows up to {release.max_opset}.",
                "Export the model again.",
            )


def _data(folder: Folder, graph: GraphFacts) -> Iterator[Finding]:
    """Yield what is wrong with files of weights: missing, outside the folder, or too short."""
    place = PurePosixPath(graph.file).parent
    for location in graph.data_files:
        path = PurePosixPath(location)
        if path.is_absolute() or ".." in path.parts or "\\" in location or ":" in location:
            yield error(
                f"{graph.file} reads its weights from {location!r}, which is outside its folder.", "Do not trust it."
            )
            continue
        name = (place / path).as_posix()
        size = folder.files.get(name)
        tensors = [each for each in graph.externals if each.location == location]
        if size is None:
            yield error(f"{name} is missing: the weights of {graph.file}.", "Copy it beside the graph.")
            continue
        end = max(each.offset + each.length for each in tensors)
        if end > size:
            yield error(
                f"{name} is cut off: it has {size:,} bytes, and {graph.file} reads up to {end:,}.",
                "Copy it again; Git LFS leaves a short text instead of a file that was not fetched.",
            )
        odd = [each.tensor for each in tensors if each.length != each.needed or each.offset < 0]
        if odd:
            yield error(
                f"{graph.file} reads {_some(odd)} from {name} with a length that does not fit its shape.",
                "Export again.",
            )
    if not graph.data_files and graph.bytes >= 2**31:
        yield warning(f"{graph.file} has 2 GB or more in one protobuf, which many readers do not accept.")


def _some(names: list[str]) -> str:
    """Return the first three names, and the number of further ones."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
