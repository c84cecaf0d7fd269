"""onnxruntime in a loop of one's own that follows the contract, as the programs in examples/ do."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from edgeformer.check.contract_rules import tensor_findings
from edgeformer.check.finding import Finding, error, unknown
from edgeformer.check.folder import Folder
from edgeformer.check.session_rules import session_findings
from edgeformer.manifest.graph_forms import DECODER_GRAPH, ENCODER_GRAPH, GRAPH


def loop_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps a loop from running the graphs, for any form of the cache."""
    files = (ENCODER_GRAPH, DECODER_GRAPH) if folder.kind == "encoder-decoder" else ()
    graphs = [folder.graph(file) for file in files] or [folder.main]
    for name, graph in zip([PurePosixPath(file).name for file in files or (GRAPH,)], graphs, strict=True):
        if graph is None and folder.ort_graphs:
            yield unknown(
                f"{', '.join(folder.ort_graphs)} is in ORT format and was not checked; a loop has to name the file."
            )
            return
        if graph is None:
            yield error(f"{name} is missing, or is not a graph.", "Export the model again.")
        else:
            yield from session_findings(folder, graph)
            yield from tensor_findings(graph)


def buffer_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps a loop that binds one buffer as past and present of a layer from running."""
    yield from loop_findings(folder)
    graph = folder.main
    if graph is None or not graph.pasts:
        return
    if graph.cache_form == "dynamic":
        yield error(
            f"{graph.file} returns a present that is longer than its past, and these programs bind one buffer as both.",
            "Export with --cache static or --ops ort, or write a loop that feeds each present back.",
        )
    elif graph.cache_form is None and graph.past_shape:
        yield unknown(
            f"These programs bind one buffer as past and present, and the cache form of {graph.file} is not known."
        )
