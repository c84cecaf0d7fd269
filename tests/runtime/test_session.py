"""Which onnxruntime will do, and what sessions are opened with: attention without tiles on x86, threads that sleep."""

import base64
import os
import platform
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeformer.errors import MissingDependencyError, RequestError
from edgeformer.runtime import load
from edgeformer.runtime.sessions import session
from edgeformer.runtime.sessions.int8_saturation import GRAPH
from edgeformer.runtime.sessions.session import TILED_ATTENTION_OFF, choose_threads, open_session, session_options

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(TILED_ATTENTION_OFF, raising=False)


@pytest.fixture
def graph(tmp_path):
    (tmp_path / "model.onnx").write_bytes(base64.b64decode(GRAPH))
    return tmp_path / "model.onnx"


@pytest.fixture
def seen(monkeypatch):
    """What the variable was whenever a session was made, which takes a moment."""
    values, ort = [], session.onnxruntime()
    session_options(1)  # tries a product once a process, in a session that is not meant

    class Noting(ort.InferenceSession):
        def __init__(self, *arguments, **options):
            time.sleep(0.005)
            values.append(os.environ.get(TILED_ATTENTION_OFF))
            super().__init__(*arguments, **options)

    monkeypatch.setattr(ort, "InferenceSession", Noting)
    return values


@pytest.mark.parametrize("version", ["1.18.1", "1.23.0", "1.29.1", "0.5.0"])
def test_an_old_onnxruntime_is_refused_with_advice(monkeypatch, graph, version):
    monkeypatch.setattr(ort, "__version__", version)
    with pytest.raises(MissingDependencyError, match=rf"1\.30 or newer, and {version} is installed.*pip install"):
        open_session(graph)


def test_what_pip_installs_is_new_enough():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    oldest = ".".join(map(str, session.OLDEST))
    assert (extras["cpu"], extras["gpu"]) == ([f"onnxruntime>={oldest}"], [f"onnxruntime-gpu[cuda,cudnn]>={oldest}"])


@pytest.mark.parametrize("version", ["1.30.0", "1.31.0.dev20261001002", "2.0.0rc1", "1.100.2"])
def test_a_newer_one_is_not(monkeypatch, graph, version):
    monkeypatch.setattr(ort, "__version__", version)
    assert open_session(graph).get_inputs()


@pytest.mark.parametrize(("machine", "value"), [("x86_64", "1"), ("AMD64", "1"), ("aarch64", None), ("arm64", None)])
def test_it_is_off_on_x86_while_a_session_opens(monkeypatch, graph, seen, machine, value):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    open_session(graph)
    assert seen[-1] == value
    assert TILED_ATTENTION_OFF not in os.environ


@pytest.mark.parametrize("own", ["0", "1"])
def test_an_own_choice_stands(monkeypatch, graph, seen, own):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(TILED_ATTENTION_OFF, own)
    open_session(graph)
    assert seen[-1] == os.environ[TILED_ATTENTION_OFF] == own


def test_threads_that_open_sessions_do_not_disturb_each_other(monkeypatch, graph, seen):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: open_session(graph), range(24)))
    assert seen == ["1"] * 24
    assert TILED_ATTENTION_OFF not in os.environ


def test_a_failed_load_restores_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(session.BundleError, match="cannot load"):
        open_session(tmp_path / "model.onnx")
    assert TILED_ATTENTION_OFF not in os.environ


PRODUCT = """<ir_version: 10, opset_import: ["" : 21]>
product (float[256, 512] x) => (float[256, 512] y) <int64[2] shape = {512, 512}> {
    w = ConstantOfShape <value: tensor = float[1] {1}> (shape)
    y = MatMul(x, w)
}"""


def processor_seconds_after_a_run(options: ort.SessionOptions) -> float:
    model = ort.InferenceSession(
        onnx.parser.parse_model(PRODUCT).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.ones((256, 512), np.float32)
    model.run(None, {"x": x})
    time.sleep(0.2)
    model.run(None, {"x": x})
    start = time.process_time()
    time.sleep(0.2)
    return time.process_time() - start


def test_threads_that_have_nothing_to_do_sleep():
    """Processor time is 1.5 ms after a run, and 40 ms where threads spin as onnxruntime's own default lets them.

    A busy machine does not stretch processor time, but it may leave a spinning thread none: one run of twenty that
    spins is enough.
    """
    options = session_options(2)
    assert min(processor_seconds_after_a_run(options) for _ in range(2)) < 0.01
    options.add_session_config_entry("session.intra_op.spin_duration_us", "100000")
    assert any(processor_seconds_after_a_run(options) > 0.01 for _ in range(20))


@pytest.mark.parametrize("threads", [0, -1, 10_000, True, 1.0, "2"])
def test_threads_are_as_many_as_there_are_cores_at_most(threads, tiny_llama_bundle, monkeypatch):
    monkeypatch.setattr("edgeformer.runtime.sessions.session.usable_cores", lambda: 3)
    with pytest.raises(RequestError, match=rf"^threads is {threads!r}; it must be a number from 1 to 3, the cores"):
        load(tiny_llama_bundle, threads=threads)
    assert [choose_threads(each) for each in (1, 3, None)] == [1, 3, 3]


GIVEN_BACK = """
import os
import onnxruntime
from edgeformer.runtime.sessions.providers.cpu import give_back_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]
last, before = blocks.pop(), resident()
blocks.clear()
freed = resident()
give_back_memory()
print(before - resident() > 80e6 > before - freed)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="2026-11-30: glibc alone keeps what is freed")
def test_memory_that_was_freed_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
