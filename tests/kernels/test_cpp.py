"""The C++ tests of kernels/: test_cpp_faults.py has faults that they must find, test_sanitizers.py other builds."""

import subprocess

import pytest
from build_kernels import PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tests_in_cpp_pass(built, program):
    done = subprocess.run([built / program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
