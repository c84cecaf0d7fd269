"""The library describes itself, takes its options when it is registered, and refuses onnxruntimes that are too old."""

import ctypes
import json
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from build_kernels import KERNELS
from packaging.requirements import Requirement
from test_mat_mul_n_bits import graph_of, product, random_weights, session_of

from edgeformer.export.graph import canonical
from edgeformer.runtime.sessions import kernels
from edgeformer.runtime.sessions.session import onnxruntime_errors

SIZES = {"N": 64, "K": 256, "bits": 4, "block_size": 32}


def described(library):
    describe = ctypes.CDLL(library).edgeformer_kernels_describe
    describe.restype = ctypes.c_char_p
    return json.loads(describe())


def test_the_library_describes_itself(library):
    version = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]["version"]
    description = described(library)
    levels = description.pop("levels")
    assert levels[-1] == "plain"
    assert description == {
        "version": version, "contract": kernels.CONTRACT, "onnxruntime": "1.23", "ops": description["ops"],
        "level": levels[0], "panels": description["panels"],
    }  # fmt: skip
    assert {"MatMulNBits", "PackMatMulNBits"} <= set(description["ops"])
    assert set(description["panels"]) == set(levels)
    assert all(
        re.fullmatch(r"panels \d+, columns \d+, byte bias (0|128)", each) for each in description["panels"].values()
    )


def test_the_extra_installs_the_package_of_this_repository():
    own = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]
    extras = tomllib.loads((KERNELS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = map(Requirement, extras["kernels"])
    assert wanted.name == own["name"]
    assert wanted.specifier.contains(own["version"])
    assert not wanted.specifier.contains("0.2.0"), "a minor version may have another contract"


def test_no_op_has_the_name_of_a_canonical_op(library):
    """A portable graph may have canonical ops as functions of the same domain, with other inputs."""
    assert set(described(library)["ops"]).isdisjoint(canonical.OPS)


def test_a_session_chooses_its_level(library):
    parts = random_weights(64, 256, 4, 32, zero_points=True)
    graph = graph_of(parts, **SIZES)
    x = np.random.default_rng(0).standard_normal((20, 256)).astype(np.float32)
    expected, bound = product(x, parts, 4, 32)
    for level in described(library)["levels"]:
        answer = session_of(graph, library, level=level).run(None, {"A": x})[0]
        assert (np.abs(answer - expected) / bound).max() < 2.0**-10
    with pytest.raises(onnxruntime_errors(), match="edgeformer.level must be one of .*plain, not sse2"):
        session_of(graph, library, level="sse2")


def test_a_process_chooses_its_level(library):
    code = f"""if True:
        import onnxruntime
        onnxruntime.SessionOptions().register_custom_ops_library({library!r})
        import ctypes
        describe = ctypes.CDLL({library!r}).edgeformer_kernels_describe
        describe.restype = ctypes.c_char_p
        print(describe().decode())"""

    def run(level):
        environment = {"EDGEFORMER_KERNELS_LEVEL": level, "ORT_DISABLE_TELEMETRY": "1"}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    assert json.loads(run("plain").stdout)["level"] == "plain"
    assert "EDGEFORMER_KERNELS_LEVEL must be one of" in run("sse2").stderr


def test_an_onnxruntime_without_its_functions_is_refused(library):
    """An onnxruntime older than 1.23 has no such API: `GetApi` returns null, and the first one makes the error."""
    said = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, message):
        said.append((code, message.decode()))
        return 1

    first = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))  # of OrtApi, CreateStatus is the first
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda version: ctypes.addressof(first) if version < 23 else None
    )
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(ctypes.c_char_p(b"1.22.1"), ctypes.c_void_p).value)
    base = (ctypes.c_void_p * 2)(*(ctypes.cast(each, ctypes.c_void_p) for each in (get_api, version)))
    register = ctypes.CDLL(library).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1
    assert said == [(2, "edgeformer-kernels need onnxruntime 1.23 or newer, and this is 1.22.1")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "takes"),
    [("1.20.1", False), ("1.22.1", False), ("1.23.2", True), ("1.27.0", True), ("1.31.1", True), ("1.32.0", True)],
)
def test_older_onnxruntimes_take_it_or_refuse_it(library, tmp_path, version, takes):
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", tmp_path / "ort", "--no-deps"]
    installed = subprocess.run([*command, f"onnxruntime=={version}"], capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"2026-11-24: pip cannot install onnxruntime {version} here")
    graph, x = tmp_path / "graph.onnx", np.ones((3, 256), np.float32)
    graph.write_bytes(graph_of(random_weights(64, 256, 4, 32, zero_points=True), **SIZES))
    code = f"""if True:
        import numpy, onnxruntime
        assert onnxruntime.__version__ == {version!r}
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library({library!r})
        session = onnxruntime.InferenceSession({str(graph)!r}, options, providers=["CPUExecutionProvider"])
        numpy.save({str(tmp_path / "y.npy")!r}, session.run(None, {{"A": numpy.ones((3, 256), "f")}})[0])"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "ort")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if takes else 1), done.stderr  # a crash is a negative number
    if takes:
        ours = session_of(graph.read_bytes(), library).run(None, {"A": x})[0]
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ours)
    else:
        assert f"need onnxruntime 1.23 or newer, and this is {version}" in done.stderr
