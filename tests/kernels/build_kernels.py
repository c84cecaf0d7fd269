"""Build edgeformer-kernels with CMake from kernels/, once for each state of its sources, or say what is missing."""

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

KERNELS = Path(__file__).parent.parent.parent / "kernels"
TESTED = (
    "attention",
    "file_pages",
    "gate",
    "half",
    "panels",
    "per_token_linear",
    "float_linear",
    "quantized_linear",
    "recurrent",
    "team",
    "weight_memory",
    "windowed_attention",
)
PROGRAMS = tuple(f"test_{name}" for name in TESTED)
"""The tests in C++."""
BUILDS = KERNELS.parent / "build" / "kernels"
COMPILERS = ("clang++-19", "clang++", "g++")
"""Compilers that are tried, the fastest code first; the environment's CXX goes before them."""


def what_is_missing() -> str | None:
    """Return why the library cannot be built here, or None."""
    if shutil.which("cmake") is None:
        return "cmake"
    if compiler() is None:
        return "a C++20 compiler"
    return None


def compiler() -> str | None:
    """Return the path of the compiler, or None."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX") or "c++-of-the-user", *COMPILERS])), None)


def headers() -> Path | None:
    """Return the folder of onnxruntime_c_api.h, to which a test holds what we declare of it, or None."""
    folder = Path(os.environ.get("EDGEFORMER_ONNXRUNTIME", "/nowhere")) / "include"
    return folder if (folder / "onnxruntime_c_api.h").is_file() else None


def build(*, op: bool = True, options: tuple[str, ...] = (), targets: tuple[str, ...] = ("all",)) -> Path:
    """Build the library and the C++ tests; return the folder that has them.

    op: with the binding to onnxruntime. options: for CMake. targets: those that are built. Raises AssertionError with
    the compiler's output.
    """
    line = ["cmake", "-S", str(KERNELS), f"-DCMAKE_CXX_COMPILER={compiler()}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    line += ["-DEDGEFORMER_KERNELS_TESTS=ON", *options]
    line += [f"-DEDGEFORMER_KERNELS_OP={'ON' if op else 'OFF'}"]
    files = sorted(path for path in KERNELS.rglob("*") if path.is_file() and "build" not in path.parts)
    state = b"".join(path.read_bytes() for path in files) + repr((line, targets)).encode()
    folder = BUILDS / hashlib.sha256(state).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            make = ["cmake", "--build", str(folder), "--parallel", "2", "--target", *targets]
            for command in ([*line, "-B", str(folder)], make):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
            (folder / "complete").touch()
    return folder


def install_into(site, library, version="9.9"):
    """Put a package with a library into a folder, as pip does."""
    package, info = site / "edgeformer_kernels", site / f"edgeformer_kernels-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    copy = package / "libedgeformer_kernels.so"
    shutil.copyfile(library, copy)
    digest = base64.urlsafe_b64encode(hashlib.sha256(copy.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"edgeformer_kernels/{copy.name},sha256={digest},{copy.stat().st_size}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: edgeformer-kernels\nVersion: {version}\n")
    return copy
