"""Rules of onnxruntime's session, with which every client opens graphs: versions, ops, files of weights.

Source: onnxruntime 1.31.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from edgeformer.check.finding import Finding, error, unknown, warning
from edgeformer.check.folder import Folder
from edgeformer.check.graph_facts import ONNX_DOMAINS, GraphFacts
from edgeformer.contract.ops import CONTRIB

MAX_IR, MAX_OPSET = 13, 26
"""Latest ONNX IR version and opset that onnxruntime 1.31 reads."""
DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml", CONTRIB, "com.microsoft.nchwc")


def session_findings(folder: Folder, graph: GraphFacts) -> Iterator[Finding]:
    """Yield what keeps onnxruntime from opening a graph in this folder."""
    again = "Export the model again."
    if graph.ir_version > MAX_IR:
        yield error(
            f"{graph.file} has ONNX IR version {graph.ir_version}, and onnxruntime 1.31 reads up to {MAX_IR}.",
            f"Set model.ir_version = {MAX_IR} with the package onnx, and save it.",
        )
    for domain in ONNX_DOMAINS:
        if graph.opsets.get(domain, 0) > MAX_OPSET:
            yield error(
                f"{graph.file} has opset {graph.opsets[domain]}, and onnxruntime 1.31 knows up to {MAX_OPSET}.", again
            )
    known = {*DOMAINS, *(domain for domain, _ in graph.functions)}
    foreign = sorted({f"{domain}::{op}" for domain, op in graph.ops if domain not in known})
    if foreign:
        yield unknown(
            f"{graph.file} has ops of another library: {_some(foreign)}.",
            "It loads only where that library is registered with the session.",
        )
    yield from _data(folder, graph)


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
