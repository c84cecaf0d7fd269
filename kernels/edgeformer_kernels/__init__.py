"""Find the native library with edgeformer's kernels for onnxruntime.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(edgeformer_kernels.library())

Then nodes of domain `edgeformer` in a graph run its kernels. Without it, the graph's own functions run.
"""

from pathlib import Path


def library() -> str:
    """Return the absolute path of the library. Raises FileNotFoundError if this package was installed without it."""
    folder = Path(__file__).resolve().parent
    for name in ("libedgeformer_kernels.so", "libedgeformer_kernels.dylib", "edgeformer_kernels.dll"):
        if (folder / name).is_file():
            return str(folder / name)
    raise FileNotFoundError(f"{folder} has no library; install edgeformer-kernels from a wheel")
