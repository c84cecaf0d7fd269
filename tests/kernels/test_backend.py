"""The wheel is built by pip alone: by a clang of the system, by PyPI's zig, or, without either, with no library."""

import re
import subprocess
import sys
import zipfile
from importlib import util

import pytest
from build_kernels import KERNELS, compiler

from edgeformer.runtime.sessions.kernels import NAMES

FILE = KERNELS / "backend" / "edgeformer_kernels_build.py"
TAG = "manylinux_2_28_x86_64"


@pytest.fixture
def backend(monkeypatch):
    """Return the backend, in an environment that names no compiler."""
    for name in ("CXX", "EDGEFORMER_KERNELS_PLATFORM", "EDGEFORMER_KERNELS_REQUIRED"):
        monkeypatch.delenv(name, raising=False)
    spec = util.spec_from_file_location(FILE.stem, FILE)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_compiler_the_wheel_has_no_library(backend, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    wheel = backend.build_wheel(tmp_path)
    assert wheel == "edgeformer_kernels-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(NAMES)] == []
        assert b"Root-Is-Purelib: true" in archive.read("edgeformer_kernels-0.1.0.dist-info/WHEEL")
    said = capsys.readouterr().err
    assert re.fullmatch(r"edgeformer runs without kernels, which cannot be built here: there is no clang 19 .*\n", said)
    monkeypatch.setenv("EDGEFORMER_KERNELS_REQUIRED", "1")
    with pytest.raises(RuntimeError, match="there is no clang 19 or newer, and no package ziglang for"):
        backend.build_wheel(tmp_path)


@pytest.mark.parametrize(
    ("says", "taken"),
    [("Debian clang version 19.1.4", True), ("clang version 14.0.6", False), ("Apple clang version 16.0.0", False)],
)
def test_a_clang_that_is_new_enough_is_taken(backend, monkeypatch, tmp_path, says, taken):
    program = tmp_path / "clang++"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")  # it compiles what it is asked for, too
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    assert backend.get_requires_for_build_wheel() == ([] if taken else [backend.ZIG])


def test_a_clang_that_cannot_link_is_not_taken(backend, monkeypatch, tmp_path):
    """A compiler without a C++ library is found by a program that needs it."""
    program = tmp_path / "clang++"
    program.write_text("#!/bin/sh\n[ $# = 1 ] && echo 'clang version 20.1.0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    assert backend.get_requires_for_build_wheel() == [backend.ZIG]


def test_the_flags_of_levels_are_those_of_cmake(backend):
    files = {path.name for path in (KERNELS / "src").glob("level_*.cc")}
    assert {name for each in backend.LEVELS.values() for name in each} == files - {"level_plain.cc"}
    assert "-mavx512vnni" in backend.LEVELS["x86_64"]["level_avx512.cc"]
    assert backend.LEVELS["aarch64"]["level_neon_i8mm.cc"] == ["-mcpu=generic+dotprod+i8mm"]


def test_cmake_has_all_files(backend):
    """The backend takes all that are there."""
    text = (KERNELS / "CMakeLists.txt").read_text()
    files = {str(path.relative_to(KERNELS)) for path in (KERNELS / "src").rglob("*.cc")}
    assert set(re.findall(r"src/[\w/]+\.cc", text)) == files


def test_files_that_a_wheel_compiles_as_one_fit_together(backend, can_build, tmp_path):
    """CMake, which builds the library of these tests, compiles each by itself."""
    sources = sorted((KERNELS / "src").rglob("*.cc"))
    line = [
        compiler(), "-w", *backend.FLAGS, '-DEDGEFORMER_KERNELS_VERSION="9.9"', f"-I{KERNELS / 'src'}", "-fsyntax-only"
    ]  # fmt: skip

    def errors(*more):
        files = backend._joined([*sources, *more], tmp_path)
        return subprocess.run([*line, *map(str, files)], capture_output=True, text=True, check=False).stderr

    assert "error" not in errors()
    again = tmp_path / "src" / "again.cc"
    again.parent.mkdir()
    again.write_text(
        "#include <cstddef>\nnamespace edgeformer { namespace { constexpr std::size_t kChunkBytes = 1; } }\n"
    )
    assert "redefinition of 'kChunkBytes'" in errors(again)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="2026-11-27: the tag is for Linux")
def test_zig_builds_a_wheel_for_every_linux(tmp_path):
    line = [sys.executable, KERNELS.parent / "tools" / "kernel_wheels.py", tmp_path, "--platform", TAG]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"MB, x86_64, glibc 2\.\d+, needs .*opened here: \[.*\"avx2\"", done.stdout), done.stdout
