"""edgeformer's own runtime, which reads the manifest."""

from collections.abc import Iterator

from edgeformer.check.contract_rules import tensor_findings
from edgeformer.check.finding import Finding, error
from edgeformer.check.folder import Folder
from edgeformer.check.session_rules import session_findings
from edgeformer.errors import BundleError
from edgeformer.manifest.graph_forms import FORMS
from edgeformer.manifest.manifest import FILE_NAME


def edgeformer_findings(folder: Folder) -> Iterator[Finding]:
    """Yield what keeps `edgeformer.runtime` from loading a folder."""
    try:
        manifest = folder.manifest()
    except BundleError as problem:
        yield error(str(problem))
        return
    for form, entry in manifest.graphs.items():
        name, graph = entry.file, folder.graphs.get(entry.file)
        if name in folder.ort_graphs:
            continue  # its size is as in the manifest, and the package onnx cannot read it
        if graph is None:
            yield error(f"{name} cannot be read, and {FILE_NAME} names it.", "Export the model again.")
        else:
            yield from session_findings(folder, graph)
            if FORMS[form].steps and FORMS[form].replaces is None:  # caches of any length
                yield from tensor_findings(graph)
