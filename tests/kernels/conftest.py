"""The built library, for tests of a machine that can build it."""

import pytest
from build_kernels import build, what_is_missing


@pytest.fixture(scope="session")
def built():
    """Return the folder with the library and the C++ tests, built from kernels/."""
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(f"2026-11-23: edgeformer-kernels cannot be built here: {missing} is missing")
    return build()


@pytest.fixture(scope="session")
def library(built):
    """Return the path of the library."""
    return str(next(built.glob("libedgeformer_kernels.*")))
