"""The built library, for tests of a machine that can build it, and packages of it that are installed."""

import json
import subprocess

import pytest
from build_kernels import PROGRAMS, build, compiler, install_into, what_is_missing

from edgeformer.runtime.sessions import kernels


@pytest.fixture(scope="session")
def can_build():
    """Skip tests where the library cannot be built."""
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(f"2026-11-23: edgeformer-kernels cannot be built here: {missing} is missing")


@pytest.fixture(scope="session")
def built(can_build):
    """Return the folder with the library and the C++ tests, built from kernels/."""
    return build(targets=("edgeformer_kernels", *PROGRAMS))


@pytest.fixture(scope="session")
def library(built):
    """Return the path of the library."""
    return str(next(built.glob("libedgeformer_kernels.*")))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Return a function that installs a package for a library, and clears what the runtime remembers of it."""

    def install(library):
        copy = install_into(tmp_path / "site", library)
        monkeypatch.syspath_prepend(tmp_path / "site")
        kernels.find_library.cache_clear()
        return copy

    monkeypatch.delenv(kernels.SWITCH, raising=False)
    yield install
    kernels.find_library.cache_clear()


@pytest.fixture
def library_that_says(tmp_path):
    """Return a function that builds a library which does nothing but describe itself."""

    def build_it(**changes):
        said = {"version": "9.9", "contract": kernels.CONTRACT, "onnxruntime": "1.23", "ops": [], "levels": ["plain"]}
        text = json.dumps(json.dumps(said | {"level": "plain"} | changes))
        source, made = tmp_path / "says.cc", tmp_path / "says.so"
        source.write_text(f'extern "C" const char* edgeformer_kernels_describe() {{ return {text}; }}')
        subprocess.run([compiler(), "-shared", "-fPIC", source, "-o", made], check=True)
        return made

    return build_it
