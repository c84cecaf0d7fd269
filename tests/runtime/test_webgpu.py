"""The WebGPU provider without a device: what is missing is named, `auto` takes real devices only, and its options."""

import base64
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, WEBGPU
from edgeformer.runtime import CudaOptions, WebGpuOptions, load
from edgeformer.runtime.sessions.providers import sessions_of, webgpu, webgpu_buffers
from edgeformer.runtime.sessions.providers import webgpu_machine as probed
from edgeformer.runtime.sessions.session import (
    BESIDE,
    choose_provider,
    graph_session,
    open_session,
    session_options,
)

TEXTS = {
    kind: f'<ir_version: 8, opset_import: ["" : 14]> add ({name}[n] a) => ({name}[n] b) {{ b = Add (a, a) }}'
    for kind, name in (("float32", "float"), ("float16", "float16"))
}


ATTEND = """
<ir_version: 8, opset_import: ["" : 14, "com.microsoft" : 1]>
attend (float[1, 32, 8] q, float[1, 32, 8] k, float[1, 32, 8] v) => (float[1, 32, 8] o)
<int32[1] last = {31}, int32 total = {32}>
{ o, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, k, v, , , last, total) }
"""


SUMS = """
<ir_version: 8, opset_import: ["" : 14]>
sums (float[m, 1] a, float[1, n] b) => (float[m] c)
<int64[1] last = {1}> { all = Add (a, b) c = ReduceSum <keepdims = 0> (all, last) }
"""


def device(kind="GPU", name=WEBGPU.execution_provider):
    hardware = SimpleNamespace(type=f"OrtHardwareDeviceType.{kind}", vendor="", vendor_id=0x8086)
    return SimpleNamespace(ep_name=name, device=hardware)


@pytest.fixture
def machine(monkeypatch):
    """A function that makes this machine have a plugin and devices; `fails` are the types that do not run."""

    def made(devices=(), plugin="0.4.0", loads=True, fails=()):
        monkeypatch.setattr(probed, "plugin_version", lambda: plugin)
        monkeypatch.setattr(webgpu, "plugin_version", lambda: plugin)
        monkeypatch.setattr(probed, "_loads", lambda name: loads)
        monkeypatch.setattr(probed, "webgpu_devices", lambda ort, options: list(devices))
        monkeypatch.setattr(probed, "_failure", lambda ort, options, kind: "No adapter" if kind in fails else None)

    monkeypatch.setattr(sys, "platform", "linux")
    for each in (probed.webgpu_machine, probed.lacks_float16):
        each.cache_clear()
    yield made
    for each in (probed.webgpu_machine, probed.lacks_float16):
        each.cache_clear()


@pytest.fixture(scope="module")
def manifest(tiny_llama_bundle):
    """The manifest of a bundle for WebGPU."""
    manifest = Manifest.read(tiny_llama_bundle)
    return replace(manifest, plan=replace(manifest.plan, provider="webgpu"))


@pytest.mark.parametrize("kind", TEXTS)
def test_the_graph_that_is_tried_is_what_its_comment_says(kind):
    model = onnx.load_from_string(base64.b64decode(probed.GRAPHS[kind]))
    assert model == onnx.parser.parse_model(TEXTS[kind])
    assert TEXTS[kind] in Path(probed.__file__).read_text(encoding="utf-8")


def test_the_attention_that_is_tried_is_what_its_comment_says():
    assert onnx.load_from_string(base64.b64decode(probed.ATTENTION)) == onnx.parser.parse_model(ATTEND)
    text = Path(probed.__file__).read_text(encoding="utf-8")
    assert all(f"#   {line}" in text for line in ATTEND.strip().splitlines())
    session = ort.InferenceSession(base64.b64decode(probed.ATTENTION), providers=[CPU.execution_provider])
    value = np.repeat(np.arange(32, dtype=np.float32)[None, :, None], 8, axis=2)
    (found,) = session.run(["o"], {"q": value * 0, "k": value * 0, "v": value})
    np.testing.assert_allclose(found[0, :, 0], np.arange(32) / 2, atol=1e-5)


def test_the_buffer_that_is_tried_is_what_its_comment_says():
    """The intermediate has as many bytes as are tried, or a row more."""
    content = base64.b64decode(webgpu_buffers.GRAPH)
    assert onnx.load_from_string(content) == onnx.parser.parse_model(SUMS)
    text = Path(webgpu_buffers.__file__).read_text(encoding="utf-8")
    assert all(f"#   {line}" in text for line in SUMS.strip().splitlines())
    session = ort.InferenceSession(content, providers=[CPU.execution_provider])
    (found,) = session.run(None, {"a": np.full((3, 1), 2, np.float32), "b": np.ones((1, 5), np.float32)})
    assert found.tolist() == [15, 15, 15]


def test_the_largest_weight_is_found_in_the_file(tiny_llama_bundle, tmp_path):
    graph = tiny_llama_bundle / "onnx" / "model.onnx"
    tensors = onnx.load(graph, load_external_data=False).graph.initializer
    lengths = {each.name: int(entry.value) for each in tensors for entry in each.external_data if entry.key == "length"}
    name, size = webgpu_buffers.largest_weight(graph)
    assert len(lengths) > 10 and size == max(lengths.values()) and lengths[name] == size
    (tmp_path / "model.onnx").write_bytes(graph.read_bytes()[:-3000])
    assert webgpu_buffers.largest_weight(tmp_path / "model.onnx") == ("", 0)
    assert webgpu_buffers.largest_weight(tmp_path / "absent.onnx") == ("", 0)


def test_a_weight_that_no_buffer_takes_is_named(tiny_llama_bundle, monkeypatch):
    """A small limit is planted: buffers of more than 2 MB fail."""
    graph = tiny_llama_bundle / "onnx" / "model.onnx"
    (name, size), tried = webgpu_buffers.largest_weight(graph), []

    def fails(ort, options, graph, feeds):
        tried.append(feeds["a"].size * feeds["b"].size * 4)
        return None if tried[-1] <= 2_000_000 else "Allocation size too large"

    monkeypatch.setattr(webgpu_buffers, "LEAST_BINDING", 1_000_000)
    monkeypatch.setattr(webgpu_buffers, "failure_of", fails)
    webgpu_buffers.refusal_of.cache_clear()
    message = (
        f"{graph} has a weight, {name}, of {size / 1e6:,.0f} MB, and the adapter has no buffer of that size "
        r"\(Allocation size too large\); one of (\d+) MB works. Export the model with --precision int4 or int8"
    )
    with pytest.raises(RequestError, match=message):
        open_session(graph, WEBGPU)
    webgpu_buffers.refusal_of.cache_clear()
    assert 0 <= tried[0] - size < 4 * webgpu_buffers.COLUMNS and tried[-1] <= 2_000_000


class OnTheCpu(webgpu.WebGpuSessions):
    """Sessions that compute on the CPU and know the errors of WebGPU."""

    def choose(self, ort, session_options, given=None):
        return [CPU.execution_provider]


NO_BUFFER = "WebGPU validation failed. [Invalid Buffer (unlabeled)] is invalid due to a previous error."
VERIFY = "Check the bundle with: edgeformer verify"


@pytest.mark.parametrize(
    ("sessions", "name", "error", "advice"),
    [
        (OnTheCpu(), "model.onnx", NO_BUFFER, "The adapter of WebGPU has no buffer that is large enough for the"),
        (OnTheCpu(), BESIDE, NO_BUFFER, "The adapter of WebGPU has no buffer that is large enough for the"),
        (OnTheCpu(), "model.onnx", "Invalid rank for input: a", VERIFY),
        (OnTheCpu(), BESIDE, "Invalid rank for input: a", ""),
        (sessions_of(CPU), "model.onnx", NO_BUFFER, VERIFY),
    ],
)
def test_a_run_that_no_buffer_takes_says_so(monkeypatch, sessions, name, error, advice):
    """Graphs of a bundle, and the small ones beside it, that copy its caches; the CPU says nothing of buffers."""
    session = graph_session(name, sessions, base64.b64decode(webgpu_buffers.GRAPH), session_options(1))

    def fails(*arguments):
        raise RuntimeError(error)

    monkeypatch.setattr(ort.InferenceSession, "run", fails)
    with pytest.raises(BundleError) as said:
        session.run(None, {})
    expected = f"onnxruntime cannot run {name}: {error} {advice}".rstrip()
    assert str(said.value).startswith(expected) if advice else str(said.value) == expected


def test_a_session_names_one_of_two_gpus(machine):
    """The plugin refuses a session of two devices, and chooses the adapter by its power preference."""
    named = []
    machine([device(), device()])
    options = SimpleNamespace(add_provider_for_devices=lambda devices, values: named.append((len(devices), values)))
    probed.use_webgpu(ort, options, WebGpuOptions(power_preference="low-power"))
    assert named == [(1, {"powerPreference": "low-power"})]
    assert "a GPU of vendor 0x8086 and a GPU of vendor 0x8086" in str(probed.webgpu_machine(ort, WebGpuOptions()))


@pytest.mark.parametrize(
    ("has", "message"),
    [
        (
            {"plugin": None},
            "provider webgpu cannot start: onnxruntime .* found no onnxruntime-ep-webgpu and no device for it. The "
            r"plugin is not installed. Install it with: pip install 'edgeformer\[webgpu\]'. To run without a GPU, use",
        ),
        (
            {"loads": False},
            "found onnxruntime-ep-webgpu 0.4.0 and no device for it. Libvulkan.so.1 cannot be loaded. Ins",
        ),
        ({}, "no device for it. Onnxruntime sees no GPU. .* ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 or WebGpuOptions"),
        (
            {"devices": [device()], "fails": ["float32"]},
            "and a GPU of vendor 0x8086. No adapter. Install a driver for Vul",
        ),
    ],
)
def test_what_is_missing_is_named(machine, manifest, has, message):
    machine(**has)
    with pytest.raises(RequestError, match=message):
        choose_provider("webgpu", manifest)


def test_float16_takes_a_device_that_has_it(machine, manifest):
    half = replace(manifest, plan=replace(manifest.plan, precision="fp16", arithmetic="fp16"))
    machine([device()])
    assert choose_provider("webgpu", half) is WEBGPU
    assert not sessions_of(WEBGPU).lacks_machine(ort, half)
    probed.lacks_float16.cache_clear()
    machine([device()], fails=["float16"])
    with pytest.raises(
        RequestError, match=r"computes in float16, and the adapter has none \(.*shader-f16\): onnxruntime"
    ):
        choose_provider("webgpu", half)
    assert sessions_of(WEBGPU).lacks_machine(ort, half)
    assert choose_provider("webgpu", manifest) is WEBGPU


def test_a_bundle_for_another_provider_is_refused(machine, tiny_llama_bundle):
    machine([device()])
    with pytest.raises(
        RequestError, match=r"^this bundle is for CPU, and some kernels .* Export it with --provider webgpu"
    ):
        choose_provider("webgpu", Manifest.read(tiny_llama_bundle))


def test_auto_takes_a_gpu_for_a_bundle_that_is_for_it(machine, manifest, tiny_llama_bundle, recwarn):
    machine([device()])
    assert choose_provider("auto", manifest) is WEBGPU
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match="^provider auto is the CPU: this bundle is for CPU. To use the GPU of this machi"
    ):
        assert choose_provider("auto", Manifest.read(tiny_llama_bundle)) is CPU


@pytest.mark.parametrize("has", [{"plugin": None}, {}, {"devices": [device("CPU")]}, {"loads": False}])
def test_auto_never_takes_software_or_nothing(machine, manifest, recwarn, has):
    machine(**has)
    assert choose_provider("auto", manifest) is CPU
    assert not recwarn.list


def test_options_are_those_of_a_session():
    assert WebGpuOptions().for_onnxruntime() == {}
    options = WebGpuOptions(
        power_preference="low-power", validation_mode="full", max_storage_buffer_binding_size=2**27, allow_software=True
    )
    assert options.for_onnxruntime() == {
        "powerPreference": "low-power",
        "validationMode": "full",
        "maxStorageBufferBindingSize": "134217728",
    }
    assert sessions_of(WEBGPU).own(CudaOptions()) == WebGpuOptions()
    assert sessions_of(WEBGPU).own(options) is options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"power_preference": "fast"},
            "power_preference is 'fast' (str); it must be high-performance or low-power, or None",
        ),
        (
            {"validation_mode": []},
            "validation_mode is [] (list); it must be disabled, wgpuOnly, basic or full, or None.",
        ),
        (
            {"max_storage_buffer_binding_size": 0},
            "max_storage_buffer_binding_size is 0; it must be between 134217728 and",
        ),
        ({"allow_software": 1}, "allow_software is 1 (int); it must be True or False."),
    ],
)
def test_other_values_are_refused_by_their_name(options, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        WebGpuOptions(**options)


def test_other_options_than_those_of_a_provider_are_refused(tiny_llama_bundle):
    message = "^provider_options is {} (dict); it must be a CudaOptions or a WebGpuOptions, or None for the defaults."
    with pytest.raises(RequestError, match=message.replace("(", r"\(").replace(")", r"\)")):
        load(tiny_llama_bundle, provider_options={})
    assert load(tiny_llama_bundle, "cpu", provider_options=WebGpuOptions(validation_mode="full")).provider is CPU


class Registry:
    """An onnxruntime whose plugin finds a device in software only where that is allowed when it is registered."""

    def __init__(self):
        self.calls, self.found = [], []

    def get_ep_devices(self):
        return [device(name="CPUExecutionProvider"), *self.found]

    def register_execution_provider_library(self, name, path):
        self.calls.append(name)
        self.found = [device("CPU")] if probed.os.environ.get(probed.SOFTWARE) == "1" else []

    def unregister_execution_provider_library(self, name):
        self.calls.append(f"not {name}")


def test_the_plugin_is_registered_once_or_again_for_software(monkeypatch):
    monkeypatch.setattr(probed, "_registered", [])
    monkeypatch.delenv(probed.SOFTWARE, raising=False)
    monkeypatch.setattr(probed, "import_module", lambda name: SimpleNamespace(get_library_path=lambda: name))
    registry = Registry()
    assert probed.webgpu_devices(registry, WebGpuOptions()) == []
    assert probed.webgpu_devices(registry, WebGpuOptions()) == []
    assert registry.calls == ["webgpu"]
    monkeypatch.setenv(probed.SOFTWARE, "0")  # what the test changes is undone
    assert len(probed.webgpu_devices(registry, WebGpuOptions(allow_software=True))) == 1
    assert registry.calls == ["webgpu", "not webgpu", "webgpu"]
    assert len(probed.webgpu_devices(registry, WebGpuOptions())) == 1
    assert registry.calls[3:] == []
