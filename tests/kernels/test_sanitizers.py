"""The C++ tests of kernels/ with sanitizers, and for another processor."""

import shutil
import subprocess
from pathlib import Path

import pytest
from build_kernels import KERNELS, PROGRAMS, build, compiler


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_tests_in_cpp_pass_with_sanitizers(can_build, sanitizer):
    folder = build(op=False, options=(f"-DEDGEFORMER_KERNELS_SANITIZER={sanitizer}",), targets=PROGRAMS)
    for program in PROGRAMS:
        done = subprocess.run([folder / program], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_they_pass_on_arm(can_build):
    tools = ("qemu-aarch64", "aarch64-linux-gnu-g++")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing or "clang" not in Path(compiler()).name:
        pytest.skip(
            f"2026-11-23: the kernels for ARM are built by clang and run by qemu; missing: {missing or 'clang'}"
        )
    toolchain = KERNELS / "cmake" / "aarch64-linux.cmake"
    folder = build(op=False, options=(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",), targets=PROGRAMS)
    for program in PROGRAMS:
        done = subprocess.run(["qemu-aarch64", folder / program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert program != "test_quantized_linear" or "neon-dotprod is right" in done.stdout
