"""The C++ tests of kernels/ for 64-bit ARM, cross-built by clang and run by qemu, and faults that they must find."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from build_kernels import KERNELS, PROGRAMS, build, compiler
from plant_faults import compile_file, copy_of_sources, link_program

FOR_ARM = ("--target=aarch64-linux-gnu", "-static")
LEVELS = ("neon-i8mm", "neon-dotprod", "plain")
FILES = {"neon-i8mm": "level_neon_i8mm.cc", "neon-dotprod": "level_neon.cc"}


class Fault(NamedTuple):
    """The file in kernels/src, what is right there, what is wrong, its level, and the program that must find it."""

    file: str
    right: str
    wrong: str
    level: str = "neon-i8mm"
    program: str = "quantized_linear"


FAULTS = {
    "the same two columns twice": Fault(
        "simd_integers.h", "V::zip_high_words(first, second);", "V::zip_low_words(first, second);"
    ),
    "inputs of the step before": Fault("simd_integers.h", "V::load_words(of_row + stride)", "V::load_words(of_row)"),
    "the first of two rows twice": Fault(
        "simd_integers.h", "second = V::join_high(first, second);", "second = V::join_low(first, second);"
    ),
    "an odd row without its second step": Fault(
        "simd_integers.h", "V::broadcast4(of_row + stride)", "V::broadcast4(of_row)"
    ),
    "values of bytes that lack what was taken from weights": Fault(
        "simd_quad_values.h", "V::splat(V::kByteBias)", "V::splat(0)", program="attention"
    ),
    "sums of weights that lack it": Fault(
        "simd_quad_values.h", "V::kByteBias * kKeysAtOnce / V::kLanes", "0", program="attention"
    ),
    "queries of bytes with another sign": Fault(
        "simd_quads.h", "words[i] + 128 - V::kByteBias", "words[i] + 128", program="attention"
    ),
    "weights of bytes without a sign": Fault(
        "simd/neon.h", "vdupq_n_u8(kByteBias)", "vdupq_n_u8(0)", "neon-dotprod", "attention"
    ),
    "weights of bytes of other keys": Fault(
        "simd/neon.h", "vuzp2q_u8(first, second)", "vuzp2q_u8(second, first)", "neon-dotprod", "attention"
    ),
    "a word of bytes twice": Fault(
        "simd_quads.h", "columns + 3 * to_next, sums", "columns + 2 * to_next, sums", "neon-dotprod", "attention"
    ),
    "a row of bytes twice": Fault(
        "simd_quads.h", "std::min(row + 1, kRows - 1) * stride", "row * stride", program="attention"
    ),
}
"""Faults that the tests in C++ must find on ARM."""

REBUILT = sorted({(each.level, each.program) for each in FAULTS.values()})
"""Levels and programs that are linked from one changed file: without a fault they are the tests of that level."""


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
        levels = [each for each in LEVELS if (each, program.removeprefix("test_")) not in REBUILT]
        done = run(built_for_arm / program, *levels)
        assert done.returncode == 0, done.stderr
        if program == "test_per_token_linear":
            assert "neon-i8mm is right" in done.stdout and "neon-dotprod is right" in done.stdout


@pytest.mark.slow
def test_a_processor_without_matrices_runs_dotprod(built_for_arm):
    done = run(built_for_arm / "test_quantized_linear", processor="cortex-a76")
    assert done.returncode == 0, done.stderr
    assert "neon-i8mm does not run here" in done.stdout and "neon-dotprod is right" in done.stdout


def find(built_for_arm, folder, level, program, *changes):
    """Run a program of the tests over a level of changed sources."""
    source = copy_of_sources(folder, *changes)
    object_file = compile_file(built_for_arm, source, FILES[level], optimize=True)
    return run(link_program(built_for_arm, program, [object_file], folder, *FOR_ARM), level)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_on_arm(built_for_arm, tmp_path, name):
    file, right, wrong, level, program = FAULTS[name]
    done = find(built_for_arm, tmp_path, level, program, (file, right, wrong))
    assert done.returncode == 1 and f" is false: {level}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("level", "program"), REBUILT)
def test_the_same_files_without_a_fault_pass_on_arm(built_for_arm, tmp_path, level, program):
    """A program that failed for the way in which it is built here would find every fault."""
    done = find(built_for_arm, tmp_path, level, program)
    assert done.returncode == 0 and f"{level} is right" in done.stdout, done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_faults_change_code_that_is_there(name):
    """The tests above are slow; a line of C++ that no fault finds any more is seen here."""
    assert FAULTS[name].right in (KERNELS / "src" / FAULTS[name].file).read_text()
