"""Libraries with the names of CUDA's, TensorRT's and the driver's, for an unpacked wheel of onnxruntime-gpu."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

RUNTIME = Path(__file__).parent / "runtime.c"

PROVIDERS = ("libonnxruntime_providers_cuda.so", "libonnxruntime_providers_tensorrt.so")
"""The registry of all kernels asks every provider of the wheel, so TensorRT's has to load, too."""

GIVES_HANDLE = ("Create", "Create_v2")
"""Endings of functions whose first argument is where to write a handle."""

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
"""
"""C functions of a driver that runs CUDA 13.0 and has one GPU, as `runtime.c` has them."""

HEURISTIC = "cublasLtMatmulAlgoGetHeuristic"
"""cuBLASLt's choice of kernels, of which the provider wants one. Its arguments end with results and their count."""


def unpacked(wheel: Path, folder: Path) -> Path:
    """Return a folder for PYTHONPATH with the wheel's modules: the wheel itself if it is a folder, else unpacked."""
    if wheel.is_dir():
        return wheel
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def build_libraries(modules: Path, folder: Path) -> Path:
    """Write the libraries that the providers in `modules` link, and return their folder. It takes gcc and nm.

    Raises RuntimeError with the message of a command that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed, symbols = _needed(modules / "onnxruntime" / "capi")
    for library in sorted(needed):
        source, versions = folder / f"{library}.c", folder / f"{library}.map"
        source.write_text(_source_of(library, symbols[library]))
        # Symbols of CUDA's libraries have a version, which is the name of the library; it does no harm to others.
        versions.write_text(f"{library} {{ *; }};\n")
        _run(
            "gcc", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(folder / library),
            f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}",
        )  # fmt: skip
    return folder


def environment(modules: Path, libraries: Path) -> dict[str, str]:
    """Return the environment of a process that imports this onnxruntime, with these libraries."""
    return os.environ | {
        "PYTHONPATH": str(modules),
        "LD_LIBRARY_PATH": str(libraries),
        "ORT_DISABLE_TELEMETRY": "1",
    }


def fits(modules: Path) -> bool:
    """Return whether the wheel is for this interpreter, and what builds the libraries is installed."""
    state = f"onnxruntime_pybind11_state.cpython-{sys.version_info.major}{sys.version_info.minor}-*.so"
    found = any((modules / "onnxruntime" / "capi").glob(state))
    return found and all(shutil.which(each) is not None for each in ("gcc", "nm", "readelf"))


def _needed(capi: Path) -> tuple[set[str], dict[str, set[str]]]:
    """The libraries of NVIDIA that the providers link, and the symbols of each."""
    libraries, symbols = set[str](), dict[str, set[str]]()
    unversioned = set[str]()
    for provider in PROVIDERS:
        for line in _run("readelf", "-d", str(capi / provider)).splitlines():
            name = line.partition("[")[2].rstrip("]")
            if "(NEEDED)" in line and name.startswith(("libcu", "libnv")):
                libraries.add(name)
        for line in _run("nm", "-D", "--undefined-only", str(capi / provider)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if version in libraries:
                symbols.setdefault(version, set()).add(name)
            elif not version and name.startswith(("cu", "create", "getInfer", "getPlugin")):
                unversioned.add(name)
    # Nothing tells which library of the driver's and TensorRT's has a symbol without a version, so all of them have it.
    return libraries, symbols | dict.fromkeys(libraries - symbols.keys(), unversioned)


def _source_of(library: str, symbols: set[str]) -> str:
    """The C code of a library."""
    if library.startswith("libcudart."):
        return RUNTIME.read_text()
    if library.startswith("libcuda."):
        return DRIVER + _source(symbols - set(re.findall(r"cu\w+", DRIVER)))
    return _source(symbols)


def _source(symbols: Iterable[str]) -> str:
    """C functions that succeed."""
    lines = ["#include <stdlib.h>"]
    for name in sorted(symbols):
        if name.endswith(GIVES_HANDLE):
            lines.append(f"int {name}(void **made) {{ return !(*made = calloc(1, 4096)); }}")
        elif name.startswith("cublasGetStatus"):
            lines.append(f'const char *{name}(int status) {{ return "a status of simulated CUDA"; }}')
        elif name == HEURISTIC:
            places = ", ".join(f"void *p{place}" for place in range(7))
            body = "__builtin_memset(results, 0, 96); *found = 1; return 0;"
            lines.append(f"int {name}({places}, int asked, char *results, int *found) {{ {body} }}")
        else:
            lines.append(f"long {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return done.stdout
