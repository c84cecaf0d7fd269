"""Rules about functions of domain `edgeformer`: whether a client runs their bodies, or kernels of edgeformer-kernels.

onnxruntime prefers a kernel that was registered to a function of the same name, so a client runs kernels if it can
register a library and is told to. Sources: the clients' session options, and runs of each with the library.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgeformer.check.finding import Finding, error
from edgeformer.check.folder import GENAI_CONFIG, Folder
from edgeformer.contract.ops import DOMAIN
from edgeformer.manifest.manifest import FILE_NAME

KEY = "custom_ops_library"
LIBRARY = "the path that edgeformer_kernels.library() returns"

SENTENCES: dict[str, str] = {
    "edgeformer": "Kernels run where they are installed (pip install 'edgeformer[kernels]'), else bodies. "
    "`edgeformer info` says which, and why.",
    "onnxruntime": "Bodies run, unless the app registers the library: register_custom_ops_library(path) of "
    f"SessionOptions in Python, RegisterCustomOpsLibrary in C and C++, RegisterCustomOpLibrary in C#, with {LIBRARY}.",
    "onnxruntime-cpp": f"Bodies run, unless EDGEFORMER_KERNELS_LIBRARY is {LIBRARY}.",
    "onnxruntime-genai": f"Bodies run. For kernels, set model.decoder.session_options.{KEY} of {GENAI_CONFIG} to "
    f"{LIBRARY}.",
    "transformers.js-node": "Bodies run: onnxruntime-node cannot register a library.",
    "transformers.js-browser": "Bodies run: a browser loads no libraries.",
    "optimum": "Bodies run, unless from_pretrained is given session_options on which "
    f"register_custom_ops_library(path) was called, with {LIBRARY}.",
}
"""One sentence by client, about what it runs unless its config in the folder says otherwise."""


def kernel_functions(folder: Folder) -> tuple[str, ...]:
    """Return the names of functions for which kernels may stand in.

    Portable graphs may have functions of the domain, too: canonical ops, for which there are none.
    """
    if folder.document(FILE_NAME).get("plan", {}).get("functions"):
        return ()
    names = {name for graph in folder.graphs.values() for domain, name in graph.functions if domain == DOMAIN}
    return tuple(sorted(names))


def kernel_sentences(folder: Folder) -> dict[str, str]:
    """Return what each client runs, by client; nothing for a folder whose graphs have no such functions."""
    if not kernel_functions(folder):
        return {}
    library = genai_library(folder)
    if library is None:
        return SENTENCES
    named = f"Kernels run: {GENAI_CONFIG} names the library {library}, and this must be that of edgeformer-kernels."
    return SENTENCES | {"onnxruntime-genai": named}


def genai_library(folder: Folder) -> str | None:
    """Return the library of custom ops that genai_config.json names, or None."""
    found: Any = folder.document(GENAI_CONFIG)
    for key in ("model", "decoder", "session_options", KEY):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def genai_library_findings(folder: Folder) -> Iterator[Finding]:
    """Yield a library of custom ops in genai_config.json that onnxruntime-genai does not find, or does not take."""
    library = genai_library(folder)
    if library is None:
        return
    if ".." in Path(library).parts:
        yield error(f"{GENAI_CONFIG}: {KEY} is {library}; a path with .. is an error for it.", "Give an absolute path.")
    elif Path(library).is_absolute() and not os.path.isfile(library):
        yield error(f"{GENAI_CONFIG}: {KEY} is {library}, which is not on this machine.", f"Set it to {LIBRARY}.")
