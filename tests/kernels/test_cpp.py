"""The C++ tests of kernels/: test_cpp_faults.py has faults that they must find, test_sanitizers.py other builds."""

import subprocess

import pytest
from build_kernels import KERNELS, PROGRAMS, compiler


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tests_in_cpp_pass(built, program):
    done = subprocess.run([built / program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(KERNELS.glob("tests/bench_*.cc")), ids=lambda file: file.stem)
def test_a_benchmark_compiles(can_build, file):
    line = [compiler(), "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", f"-I{KERNELS / 'src'}", file]
    subprocess.run(line, check=True)
