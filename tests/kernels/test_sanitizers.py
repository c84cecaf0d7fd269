"""The C++ tests of kernels/ with sanitizers."""

import subprocess

import pytest
from build_kernels import PROGRAMS, build


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_tests_in_cpp_pass_with_sanitizers(can_build, sanitizer):
    # Nearly all time goes to the compiler, which optimises less for programs that run once.
    options = (f"-DEDGEFORMER_KERNELS_SANITIZER={sanitizer}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")
    folder = build(op=False, options=options, targets=PROGRAMS)
    for program in PROGRAMS:
        done = subprocess.run([folder / program], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
