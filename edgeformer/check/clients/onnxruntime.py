"""onnxruntime itself, under a loop that goes by the contract, as the programs of examples/ do."""

from collections.abc import Iterator

from edgeformer.check.contract import tensor_findings
from edgeformer.check.finding import Finding, error, unknown
from edgeformer.check.folder import Folder
from edgeformer.check.session import session_findings


def loop_findings(folder: Folder) -> Iterator[Finding]:
    """What keeps a loop from running the graphs that it opens, whatever form their cache has."""
    names = ("encoder_model.onnx", "decoder_model.onnx") if folder.kind == "encoder-decoder" else ()
    graphs = [folder.graph(name) for name in names] or [folder.main]
    for name, graph in zip(names or ("model.onnx",), graphs, strict=True):
        if graph is None and folder.ort_graphs:
            yield unknown(
                f"{', '.join(folder.ort_graphs)} cannot be looked into; a loop has to name a file of its own."
            )
            return
        if graph is None:
            yield error(f"{name} is missing, or is no graph.", "Export the model again.")
        else:
            yield from session_findings(folder, graph)
            yield from tensor_findings(graph)


def buffer_findings(folder: Folder) -> Iterator[Finding]:
    """The same where one buffer is past and present of a layer."""
    yield from loop_findings(folder)
    graph = folder.main
    if graph is None or not graph.pasts:
        return
    if graph.cache_form == "dynamic":
        yield error(
            f"{graph.file} gives a longer present than its past, and these programs bind one buffer as both.",
            "Export with --cache static or --ops ort, or write a loop that feeds each present back.",
        )
    elif graph.cache_form is None:
        yield unknown(
            f"These programs bind one buffer as past and present, and how {graph.file} keeps them is not known."
        )
