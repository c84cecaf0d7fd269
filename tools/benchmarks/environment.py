"""Describe when a measurement was made, on which machine and with which package versions."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Two distributions provide the module onnxruntime; having both installed is a mistake that shows here.
PACKAGES = ("edgeformer", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "torch", "transformers")


def environment() -> dict[str, str]:
    """Return the date (UTC), the processor, the system and the versions of Python and of relevant packages."""
    facts = {"date": datetime.now(UTC).date().isoformat(), "processor": _processor(), "system": platform.system()}
    facts["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    """Return the processor's name where Linux tells it, otherwise its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
