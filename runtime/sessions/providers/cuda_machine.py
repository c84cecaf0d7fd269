"""Whether this machine can run CUDA: the driver, its GPUs, and the libraries that onnxruntime's build wants.

onnxruntime itself only says that its provider did not start. This module asks the libraries, by ctypes, and says which
versions are wanted and which were found.
"""

import ctypes
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

WINDOWS = os.name == "nt"

DRIVER = "nvcuda.dll" if WINDOWS else "libcuda.so.1"

RELEASES = {12: 525, 13: 580}
"""First release of the NVIDIA driver that runs any minor version of CUDA, by CUDA's major version.

Source: the table of docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""

NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, which `cuInit` returns where there is a driver and no GPU, or none is visible."""

CUDNN = 9
"""The major version of cuDNN for onnxruntime's builds; only convolutions need it."""

RELEASE_FILE = Path("/sys/module/nvidia/version")
GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver. cuda: the newest CUDA that it runs. problem: why there is no usable GPU; None if there is one.

    absent: whether the problem is that there is no GPU at all.
    """

    release: str | None = None
    cuda: tuple[int, int] | None = None
    problem: str | None = None
    absent: bool = False

    def __str__(self) -> str:
        if self.cuda is None:
            return f"no usable driver ({self.problem})"
        release = f"driver {self.release}" if self.release else "a driver"
        return f"{release} for CUDA {self.cuda[0]}.{self.cuda[1]}"


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """The libraries of onnxruntime's provider. cuda, cudnn: versions. missing: names of those that cannot be loaded."""

    cuda: str | None
    cudnn: str | None
    missing: tuple[str, ...]

    def __str__(self) -> str:
        lacking = f" without {', '.join(self.missing)}" if self.missing and self.cuda else ""
        cuda = f"CUDA {self.cuda}{lacking}" if self.cuda else f"no CUDA libraries ({', '.join(self.missing)})"
        return f"{cuda}, {f'cuDNN {self.cudnn}' if self.cudnn else 'no cuDNN'}"


@dataclass(frozen=True, kw_only=True)
class CudaMachine:
    """The needs of a build of onnxruntime, and this machine. onnxruntime, wanted: versions of it and of its CUDA."""

    onnxruntime: str
    wanted: str
    driver: Driver
    libraries: Libraries

    @property
    def problem(self) -> str | None:
        """Return the first thing that keeps CUDA from starting, and what to do; None if nothing is known to."""
        major = int(self.wanted.split(".")[0])
        if self.driver.problem is not None:
            return f"{self.driver.problem}. Install NVIDIA's driver, on a machine with a GPU"
        if self.driver.cuda is not None and self.driver.cuda[0] < major:
            return f"the driver is too old for CUDA {major}. Install a newer one"
        if self.libraries.missing:
            names = ", ".join(self.libraries.missing)
            return f"{names} cannot be loaded. Install CUDA {major} with: pip install 'edgeformer[gpu]'"
        return None

    def __str__(self) -> str:
        major = int(self.wanted.split(".")[0])
        release = f", release {RELEASES[major]} or newer" if major in RELEASES else ""
        return (
            f"onnxruntime {self.onnxruntime} wants a driver for CUDA {major}{release}, the libraries of CUDA "
            f"{self.wanted}, and cuDNN {CUDNN} for convolutions; found: {self.driver}, {self.libraries}"
        )


def cuda_machine(ort: Any) -> CudaMachine:
    """Return what is here for the CUDA provider of onnxruntime, given as a module."""
    wanted = getattr(ort, "cuda_version", "") or "13.0"
    with redirect_stdout(sys.stderr):  # onnxruntime prints libraries that it cannot load; stdout is for our results
        return CudaMachine(
            onnxruntime=ort.__version__, wanted=wanted, driver=driver(), libraries=libraries(ort, wanted)
        )


def has_gpu_files() -> bool:
    """Return whether the kernel of Linux lists a GPU of NVIDIA; it loads no library and starts no driver."""
    return GPUS.is_dir() and any(GPUS.iterdir())


@cache
def driver() -> Driver:
    """Return what the driver says about itself and its devices; it is asked once a process."""
    cuda = _loaded(DRIVER)
    if cuda is None:
        return Driver(problem=f"there is no NVIDIA driver: {DRIVER} cannot be loaded", absent=not has_gpu_files())
    version, count = ctypes.c_int(), ctypes.c_int()
    status = cuda.cuInit(0)
    known = cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value > 0
    problem, absent = None, False
    if status == NO_DEVICE or (status == 0 and (cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value)):
        problem, absent = "the NVIDIA driver finds no GPU", True
    elif status:
        problem = f"the NVIDIA driver does not start (cuInit returned {status})"
    return Driver(
        release=RELEASE_FILE.read_text(encoding="utf-8").strip() if RELEASE_FILE.is_file() else None,
        cuda=divmod(version.value // 10, 100) if known else None,
        problem=problem,
        absent=absent,
    )


def libraries(ort: Any, wanted: str) -> Libraries:
    """Return which of CUDA's libraries load, after onnxruntime looked for those that pip installed."""
    ort.preload_dlls()
    names, major = _names(int(wanted.split(".")[0])), wanted.split(".")[0]
    loaded = {name: _loaded(name) for name in names}
    runtime, cudnn = loaded[names[0]], _loaded(f"cudnn64_{CUDNN}.dll" if WINDOWS else f"libcudnn.so.{CUDNN}")
    number = ctypes.c_int()
    found = runtime is not None and runtime.cudaRuntimeGetVersion(ctypes.byref(number)) == 0
    return Libraries(
        cuda=(f"{number.value // 1000}.{number.value // 10 % 100}" if found else major) if runtime else None,
        cudnn=_cudnn_version(cudnn),
        missing=tuple(name for name in names if loaded[name] is None),
    )


def free_gpu_memory(ort: Any) -> int | None:
    """Return the bytes that are free on the GPU that sessions run on; None if CUDA's runtime does not tell."""
    runtime = _loaded(_names(int((getattr(ort, "cuda_version", "") or "13.0").split(".")[0]))[0])
    free, whole = ctypes.c_size_t(), ctypes.c_size_t()
    if runtime is None or runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(whole)):
        return None
    return free.value


def _names(major: int) -> tuple[str, ...]:
    """Libraries that the CUDA provider links, its runtime first (their headers name no others, in 1.31.1)."""
    if WINDOWS:
        return (f"cudart64_{major}.dll", f"cublasLt64_{major}.dll", f"cublas64_{major}.dll")
    return (f"libcudart.so.{major}", f"libcublasLt.so.{major}", f"libcublas.so.{major}", "libcurand.so.10")


def _cudnn_version(cudnn: Any) -> str | None:
    """Return the version of a library; None if there is none, or one that is only called cuDNN, as in a simulation."""
    if cudnn is None or not hasattr(cudnn, "cudnnGetVersion"):
        return None
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    number = cudnn.cudnnGetVersion()  # 90100 is 9.1.0
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _loaded(name: str) -> Any:
    """Return a shared library; None if it cannot be loaded."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
