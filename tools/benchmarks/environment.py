"""Where a figure was measured: what a benchmark must say for its numbers to be worth anything."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# onnxruntime comes in two packages that hold the same module; both installed are a mistake that shows here.
PACKAGES = ("edgeformer", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "torch", "transformers")


def environment() -> dict[str, str]:
    """Versions of Python and of the installed packages that matter, the system and the processor."""
    facts = {"python": platform.python_version(), "system": platform.system(), "processor": _processor()}
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
