"""The C++ tests of kernels/ for 64-bit ARM, cross-built by clang and run by qemu, and faults that they must find."""

import shutil
import subprocess
from pathlib import Path

import pytest
from build_kernels import KERNELS, PROGRAMS, build, compiler
from plant_faults import compile_file, copy_of_sources, link_program

FOR_ARM = ("--target=aarch64-linux-gnu", "-static")
LEVELS = ("neon-i8mm", "neon-dotprod", "plain")
FAULTS = {
    "the same two columns twice": ("V::zip_high_words(first, second);", "V::zip_low_words(first, second);"),
    "inputs of the step before": ("V::load_words(of_row + stride)", "V::load_words(of_row)"),
    "the first of two rows twice": ("second = V::join_high(first, second);", "second = V::join_low(first, second);"),
    "an odd row without its second step": ("V::broadcast4(of_row + stride)", "V::broadcast4(of_row)"),
}
"""Lines of simd_integers.h that are right, and what is wrong."""


@pytest.fixture(scope="module")
def built_for_arm(can_build):
    """Return the folder of the tests in C++ for ARM."""
    tools = ("qemu-aarch64", "aarch64-linux-gnu-g++")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing or "clang" not in Path(compiler()).name:
        pytest.skip(
            f"2026-11-23: the kernels for ARM are built by clang and run by qemu; missing: {missing or 'clang'}"
        )
    toolchain = KERNELS / "cmake" / "aarch64-linux.cmake"
    return build(op=False, options=(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",), targets=PROGRAMS)


def run(program, *level, processor="max"):
    line = ["qemu-aarch64", "-cpu", processor, program, *level]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_tests_in_cpp_pass_on_arm(built_for_arm):
    """At the levels that the library has; the unit in plain C++ is a part of the tests, which others run."""
    for program in PROGRAMS:
        done = run(built_for_arm / program, *LEVELS)
        assert done.returncode == 0, done.stderr
        if program in ("test_quantized_linear", "test_per_token_linear"):
            assert "neon-i8mm is right" in done.stdout and "neon-dotprod is right" in done.stdout


@pytest.mark.slow
def test_a_processor_without_matrices_runs_dotprod(built_for_arm):
    done = run(built_for_arm / "test_quantized_linear", processor="cortex-a76")
    assert done.returncode == 0, done.stderr
    assert "neon-i8mm does not run here" in done.stdout and "neon-dotprod is right" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *FAULTS])
def test_faults_of_matrices_are_found(built_for_arm, tmp_path, name):
    """Without a fault the same file passes: a program that failed for the way in which it is built would find all."""
    source = copy_of_sources(tmp_path, *([("simd_integers.h", *FAULTS[name])] if name else []))
    object_file = compile_file(built_for_arm, source, "level_neon_i8mm.cc", optimize=True)
    done = run(link_program(built_for_arm, "quantized_linear", [object_file], tmp_path, *FOR_ARM), "neon-i8mm")
    assert done.returncode == (1 if name else 0), done.stderr
    assert (" is false: neon-i8mm" in done.stderr) == (name is not None)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_code_that_is_there(name):
    """The tests above are slow; a line of C++ that no fault finds any more is seen here."""
    assert FAULTS[name][0] in (KERNELS / "src/simd_integers.h").read_text()
