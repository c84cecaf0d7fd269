"""Find edgeformer's own kernels, and register them in sessions.

They come in a package of their own, edgeformer-kernels. Graphs of bundles call them through functions of the graph,
whose bodies run where no library is registered, so a bundle is right either way. `load(kernels=False)` and the
environment variable EDGEFORMER_KERNELS=0 leave them out.
"""

import os
import warnings
from functools import cache
from importlib import import_module
from typing import Any

OPS = 1
"""Version of the contract between graphs and kernels; a package with another one is not used."""

SWITCH = "EDGEFORMER_KERNELS"
"""The environment variable that turns kernels off with the value 0, and gives them threads of their own with `team`."""

THREADS = "edgeformer.threads"
"""The session option by which kernels have a team of that many threads, instead of the threads of the session."""


def register_kernels(options: Any) -> bool:
    """Register the library in the options of a session; return whether there is one.

    With EDGEFORMER_KERNELS=team, kernels have the threads and onnxruntime keeps one for all other ops: steps are
    faster, since starting a team costs less, and attention to long prompts is slower.
    """
    choice = os.environ.get(SWITCH)
    library = None if choice == "0" else find_library()
    if library is not None:
        if choice == "team":
            options.add_session_config_entry(THREADS, str(options.intra_op_num_threads))
            options.intra_op_num_threads = 1
        options.register_custom_ops_library(library)
    return library is not None


@cache
def find_library() -> str | None:
    """Return the absolute path of the library of the installed edgeformer-kernels; None without one that fits.

    It lies in its own package and is never taken from a bundle. Warns about a package of another version.
    """
    try:
        package = import_module("edgeformer_kernels")
    except ModuleNotFoundError:
        return None
    if package.OPS != OPS:
        warnings.warn(
            f"edgeformer-kernels {package.VERSION} is installed, for version {package.OPS} of edgeformer's ops, and "
            f"this runtime has version {OPS}. Its kernels are not used. Install the version of edgeformer-kernels that "
            "belongs to this edgeformer.",
            stacklevel=2,
        )
        return None
    return str(package.library())
