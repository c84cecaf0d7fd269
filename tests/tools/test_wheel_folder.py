"""A folder of wheels in pieces becomes a folder for PYTHONPATH, once; errors name the piece that is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner
from verification import check_cuda
from verification.cuda import wheel_folder
from verification.cuda.wheel_folder import WheelError, install, wheels_in


def wheel(folder: Path, name: str, modules: dict[str, str]) -> Path:
    """Write a wheel of a few modules."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nowhere\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*modules, *metadata, f"{info}/RECORD"))
    with ZipFile(path, "w") as archive:
        for file, text in (modules | metadata | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


def split(path: Path, pieces: int, *, digits: bool = False) -> list[Path]:
    """Replace a wheel by pieces, as `split -b` writes them: .aa, .ab, …, or .part00, .part01, …"""
    content = path.read_bytes()
    size, made = -(-len(content) // pieces), []
    for index in range(pieces):
        ending = f"part{index:02}" if digits else f"a{chr(ord('a') + index)}"
        made.append(path.with_name(f"{path.name}.{ending}"))
        made[-1].write_bytes(content[index * size : (index + 1) * size])
    path.unlink()
    return made


@pytest.fixture
def wheels(tmp_path):
    """Three wheels, two of them in pieces, and two with modules in one folder, as those of CUDA's libraries are."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "alone", {"alone.py": "number = 1\n"})
    split(wheel(folder, "some_runtime", {"nvidia/runtime/__init__.py": "number = 2\n"}), 3)
    split(wheel(folder, "some_blas", {"nvidia/blas/__init__.py": "number = 3\n"}), 2, digits=True)
    (folder / "SHA256SUMS").write_text("not a wheel")
    return folder


CODE = "import alone, nvidia.runtime, nvidia.blas; print(alone.__file__, nvidia.runtime.number, nvidia.blas.number)"


def test_wheels_in_pieces_are_joined_and_installed(wheels, tmp_path):
    target = tmp_path / "packages"
    install(wheels, target)
    printed = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | {"PYTHONPATH": str(target)}, capture_output=True, text=True
    )
    assert printed.stdout == f"{target / 'alone.py'} 2 3\n", printed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packages", "wheels"], "joined wheels are removed"


def test_what_is_installed_is_kept_until_the_wheels_are_others(wheels, tmp_path, monkeypatch):
    target, real, calls = tmp_path / "packages", subprocess.run, []

    def noted(*arguments, **options):
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(wheel_folder.subprocess, "run", noted)
    (tmp_path / "packages.part").mkdir()  # of an installation that was cut off
    (tmp_path / "packages.part" / "alone.py").write_text("number = 0\n")
    first = install(wheels, target)
    assert install(wheels, target) == first == [
        "alone-1.0-py3-none-any.whl", "some_blas-1.0-py3-none-any.whl", "some_runtime-1.0-py3-none-any.whl",
    ]  # fmt: skip
    assert len(calls) == 1
    assert (target / "alone.py").read_text() == "number = 1\n"
    assert not (tmp_path / "packages.part").exists()

    wheel(wheels, "alone", {"alone.py": "number = 100\n"})
    install(wheels, target)
    assert len(calls) == 2
    assert (target / "alone.py").read_text() == "number = 100\n"


def test_a_missing_piece_is_named(wheels, tmp_path):
    (wheels / "some_runtime-1.0-py3-none-any.whl.ab").unlink()
    with pytest.raises(WheelError, match=r"^some_runtime-1\.0-py3-none-any\.whl\.ab is missing from .*wheels\.$"):
        install(wheels, tmp_path / "packages")


def test_a_missing_last_piece_is_named(wheels, tmp_path):
    (wheels / "some_blas-1.0-py3-none-any.whl.part01").unlink()
    expected = (
        r"^some_blas-1\.0-py3-none-any\.whl is no whole wheel \(File is not a zip file\)\. Its pieces end with "
        r"some_blas-1\.0-py3-none-any\.whl\.part00; is part01 missing\?$"
    )
    with pytest.raises(WheelError, match=expected):
        install(wheels, tmp_path / "packages")
    assert not (tmp_path / "packages").exists()


def test_a_changed_byte_is_found(wheels, tmp_path):
    piece = wheels / "some_runtime-1.0-py3-none-any.whl.aa"
    piece.write_bytes(piece.read_bytes().replace(b"number = 2", b"number = 9"))
    with pytest.raises(WheelError, match=r"^some_runtime-.*\.whl is damaged at nvidia/runtime/__init__\.py\."):
        install(wheels, tmp_path / "packages")


def test_two_forms_of_one_wheel_are_refused(wheels):
    wheel(wheels, "some_blas", {"blas.py": ""})
    with pytest.raises(WheelError, match=r"some_blas-.* is in .*wheels in more than one form: whole, in pieces"):
        wheels_in(wheels)


def test_a_folder_without_wheels_is_refused(tmp_path):
    with pytest.raises(WheelError, match=r"has no wheels: files NAME\.whl, or their pieces NAME\.whl\.aa"):
        wheels_in(tmp_path)


def test_a_folder_that_is_not_ours_is_left_alone(wheels, tmp_path):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "mine.txt").write_text("mine")
    with pytest.raises(WheelError, match=r"packages exists, and was not installed from wheels\. Remove it, or name"):
        install(wheels, tmp_path / "packages")
    assert (tmp_path / "packages" / "mine.txt").read_text() == "mine"


def test_what_pip_says_of_a_wrong_wheel_is_passed_on(tmp_path):
    wheel(tmp_path, "other", {"other.py": ""}).rename(tmp_path / "other-1.0-cp27-cp27m-win32.whl")
    with pytest.raises(WheelError, match=r"pip cannot install the wheels: (.|\n)*is not a supported wheel"):
        install(tmp_path, tmp_path / "packages")


ONNXRUNTIME = """
__version__, cuda_version = "1.99.0", "13.0"
def get_available_providers(): return ["CPUExecutionProvider"]
def get_build_info(): return "the build of the wheel"
"""


@pytest.mark.slow
def test_the_check_runs_with_the_packages_of_the_wheels(tmp_path, capfd):
    folder, output = tmp_path / "wheels", tmp_path / "results" / "cuda.json"
    folder.mkdir()
    split(wheel(folder, "onnxruntime_gpu", {"onnxruntime.py": ONNXRUNTIME}), 2)
    ran = CliRunner().invoke(check_cuda.main, ["--full", "--wheels", str(folder), "--output", str(output)])
    assert ran.exit_code == 1
    assert "CUDA is not available: onnxruntime 1.99.0 has no CUDAExecutionProvider" in capfd.readouterr().err
    data = json.loads(output.read_text())
    assert data["environment"]["onnxruntime-gpu"] == "1.0"
    assert data["environment"]["onnxruntime_build"] == "the build of the wheel"
    assert data["options"] == {
        "model": "None", "full": True, "dry_run": False, "wheels": ["onnxruntime_gpu-1.0-py3-none-any.whl"],
    }  # fmt: skip
    assert (output.parent / "cuda.packages").is_dir()


def test_the_check_says_which_piece_is_missing(wheels, tmp_path):
    (wheels / "some_runtime-1.0-py3-none-any.whl.aa").unlink()
    ran = CliRunner().invoke(check_cuda.main, ["--wheels", str(wheels), "--output", str(tmp_path / "cuda.json")])
    assert ran.exit_code == 1
    assert ran.stderr.startswith("Error: some_runtime-1.0-py3-none-any.whl.aa is missing from")
