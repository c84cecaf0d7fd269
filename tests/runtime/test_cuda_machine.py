"""Whether CUDA can start: libraries of a driver and of CUDA are built here, with every answer that they may give."""

import ctypes
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from edgeformer.cli.measure import info
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, PROVIDERS
from edgeformer.runtime.sessions import session
from edgeformer.runtime.sessions.providers import cuda_machine as probed
from edgeformer.runtime.sessions.session import choose_provider

ROOT = Path(__file__).parents[2]
WHEEL = os.environ.get("EDGEFORMER_ONNXRUNTIME_GPU")

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or os.name == "nt", reason="2026-11-24: gcc builds the libraries that are asked"
)

DRIVER = """
int cuInit(int flags) {{ return {status}; }}
int cuDriverGetVersion(int *version) {{ *version = {cuda}; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = {devices}; return 0; }}
"""
RUNTIME = "int cudaRuntimeGetVersion(int *version) { *version = 13010; return 0; }"
CUDNN = "unsigned long cudnnGetVersion(void) { return 91403; }"
CUDA = {"libcudart.so.13": RUNTIME} | dict.fromkeys(
    ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"), "int nothing;"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes this process find these libraries, C code by name, and no others."""
    monkeypatch.setattr(probed, "RELEASE_FILE", tmp_path / "version")
    monkeypatch.setattr(probed, "GPUS", tmp_path / "gpus")

    def made(libraries):
        for name, code in libraries.items():
            (tmp_path / "code.c").write_text(code)
            subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "code.c", "-o", tmp_path / name], check=True)

        def loaded(name):
            return ctypes.CDLL(tmp_path / name) if name in libraries else None

        monkeypatch.setattr(probed, "_loaded", loaded)

    probed.driver.cache_clear()
    yield made
    probed.driver.cache_clear()


@pytest.fixture
def gpu_package(monkeypatch):
    """The package onnxruntime-gpu, as far as it is asked."""
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    ort = SimpleNamespace(
        __version__="1.31.1",
        cuda_version="13.0",
        preload_dlls=lambda: print("Failed to load libcudart.so.13"),
        get_available_providers=lambda: providers,
    )
    monkeypatch.setattr(session, "onnxruntime", lambda: ort)
    return providers


def bundle(**fields):
    plan = SimpleNamespace(**{"arithmetic": "fp16", "provider": "cuda", "ops": "ort"} | fields)
    return SimpleNamespace(plan=plan, cache_scales=None)


def driver(status=0, cuda=13010, devices=1):
    return {"libcuda.so.1": DRIVER.format(status=status, cuda=cuda, devices=devices)}


WANTED = (
    "provider cuda cannot start: onnxruntime 1.31.1 wants a driver for CUDA 13, release 580 or newer, the libraries of "
    "CUDA 13.0, and cuDNN 9 for convolutions; found: "
)
LACKING = "no CUDA libraries (libcudart.so.13, libcublasLt.so.13, libcublas.so.13, libcurand.so.10), no cuDNN. "
END = " To run without a GPU, use provider cpu."
FULL = CUDA | {"libcudnn.so.9": CUDNN}

REFUSED = {
    "nothing": (
        {},
        "no usable driver (there is no NVIDIA driver: libcuda.so.1 cannot be loaded), " + LACKING
        + "There is no NVIDIA driver: libcuda.so.1 cannot be loaded. Install NVIDIA's driver, on a machine with a GPU.",
    ),
    "no device": (
        driver(status=100) | FULL,
        "a driver for CUDA 13.1, CUDA 13.1, cuDNN 9.14.3. The NVIDIA driver finds no GPU. Install NVIDIA's driver, on "
        "a machine with a GPU.",
    ),
    "a driver that does not start": (
        driver(status=804) | FULL,
        "a driver for CUDA 13.1, CUDA 13.1, cuDNN 9.14.3. The NVIDIA driver does not start (cuInit returned 804). "
        "Install NVIDIA's driver, on a machine with a GPU.",
    ),
    "an old driver": (
        driver(cuda=12040) | FULL,
        "a driver for CUDA 12.4, CUDA 13.1, cuDNN 9.14.3. The driver is too old for CUDA 13. Install a newer one.",
    ),
    "no libraries": (
        driver(),
        "a driver for CUDA 13.1, " + LACKING + "Libcudart.so.13, libcublasLt.so.13, libcublas.so.13, libcurand.so.10 "
        "cannot be loaded. Install CUDA 13 with: pip install 'edgeformer[gpu]'.",
    ),
    "one library": (
        driver() | {name: code for name, code in CUDA.items() if name != "libcublas.so.13"},
        "a driver for CUDA 13.1, CUDA 13.1 without libcublas.so.13, no cuDNN. Libcublas.so.13 cannot be loaded. "
        "Install CUDA 13 with: pip install 'edgeformer[gpu]'.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_cuda_that_cannot_start_is_refused_with_all_versions(machine, gpu_package, capfd, case):
    libraries, found = REFUSED[case]
    machine(libraries)
    with pytest.raises(RequestError) as error:
        choose_provider("cuda", bundle())
    assert str(error.value).casefold() == (WANTED + found + END).casefold()
    assert capfd.readouterr().out == ""  # what onnxruntime prints is no result


def test_the_release_of_the_driver_is_named(machine, gpu_package, tmp_path):
    (tmp_path / "version").write_text("535.104.05\n")
    machine(driver(cuda=12020) | FULL)
    with pytest.raises(RequestError, match=r"found: driver 535\.104\.05 for CUDA 12\.2, CUDA 13\.1, cuDNN 9\.14\.3\."):
        choose_provider("auto", bundle())


@pytest.mark.parametrize("libraries", [driver() | FULL, driver() | CUDA], ids=["all", "no cuDNN"])
def test_a_machine_with_everything_runs_on_cuda(machine, gpu_package, libraries):
    machine(libraries)
    assert choose_provider("cuda", bundle()) is choose_provider("auto", bundle()) is PROVIDERS["cuda"]


@pytest.mark.parametrize("libraries", [{}, driver(status=100) | FULL, driver(devices=0) | FULL])
def test_auto_is_the_cpu_without_a_gpu_and_says_so(machine, gpu_package, libraries):
    machine(libraries)
    with pytest.warns(UserWarning, match="provider auto is the CPU: .*(no NVIDIA driver|finds no GPU)"):
        assert choose_provider("auto", bundle()) is CPU


@pytest.mark.parametrize("libraries", [driver(status=999), driver(cuda=12040) | FULL, driver()])
def test_auto_does_not_leave_a_gpu_that_cannot_start(machine, gpu_package, libraries):
    machine(libraries)
    with pytest.raises(RequestError, match="provider cuda cannot start"):
        choose_provider("auto", bundle())


def test_info_shows_a_bundle_where_cuda_cannot_start(machine, gpu_package):
    machine(driver())
    assert info._kernels(ROOT, bundle()) is None


def test_a_gpu_without_its_driver_library_is_still_a_gpu(machine, gpu_package, tmp_path):
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    machine({})
    with pytest.raises(RequestError, match=r"libcuda\.so\.1 cannot be loaded"):
        choose_provider("auto", bundle())


def test_auto_says_that_a_bundle_for_the_cpu_leaves_the_gpu(machine, gpu_package):
    machine(driver() | FULL)
    with pytest.warns(UserWarning, match="the CPU: this bundle is fp32 for the CPU.*--provider cuda"):
        assert choose_provider("auto", bundle(arithmetic="fp32", provider="cpu")) is CPU


def test_auto_says_that_the_package_for_the_cpu_leaves_the_gpu(machine, gpu_package, tmp_path):
    gpu_package.remove("CUDAExecutionProvider")
    assert choose_provider("auto", bundle()) is CPU  # and no warning where there is none
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"onnxruntime is for the CPU.*pip install 'edgeformer\[gpu\]'"):
        assert choose_provider("auto", bundle()) is CPU


def test_pip_brings_cuda_and_cudnn():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["gpu"] == ["onnxruntime-gpu[cuda,cudnn]>=1.30"]
    if WHEEL and Path(WHEEL).is_file():
        with ZipFile(WHEEL) as archive:
            (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
            lines = archive.read(metadata).decode().splitlines()
        assert {"Provides-Extra: cuda", "Provides-Extra: cudnn"} <= set(lines)


@pytest.mark.slow
@pytest.mark.skipif(
    not WHEEL or not Path(WHEEL).is_dir() or Path(probed.GPUS).is_dir(),
    reason="2026-11-24: EDGEFORMER_ONNXRUNTIME_GPU names no folder with onnxruntime-gpu, or there is a GPU",
)
def test_the_package_itself_is_refused_without_a_driver(tmp_path):
    folder = export_model("tiny-llama", tmp_path / "bundle", precision="fp16", provider="cuda", verify=None).path
    assert Manifest.read(folder).plan.provider == "cuda"

    def run(provider):
        code = f"from edgeformer.runtime import load; print(load({str(folder)!r}, provider={provider!r}).provider)"
        environment = os.environ | {"PYTHONPATH": WHEEL}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    refused, cpu = run("cuda"), run("auto")
    assert "found: no usable driver (there is no NVIDIA driver: libcuda.so.1 cannot be loaded)" in refused.stderr
    assert (cpu.returncode, cpu.stdout) == (0, "cpu\n"), cpu.stderr
    assert "provider auto is the CPU: there is no NVIDIA driver" in cpu.stderr
