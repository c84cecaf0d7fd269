"""Options of the CUDA provider: which ones a session is opened with, in every graph, and what is refused."""

import re
from types import SimpleNamespace

import onnxruntime as ort
import pytest

from edgeformer.errors import BundleError, RequestError
from edgeformer.export import export_model
from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime import CudaOptions, load
from edgeformer.runtime.sessions import session as sessions
from edgeformer.runtime.sessions.providers import cuda, sessions_of
from edgeformer.runtime.sessions.session import open_session


def test_tf32_is_off_unless_it_is_asked_for():
    default = {"use_tf32": "0", "arena_extend_strategy": "kNextPowerOfTwo"}
    assert sessions_of(CUDA).execution_providers(CudaOptions()) == [
        ("CUDAExecutionProvider", default),
        CPU.execution_provider,
    ]
    assert sessions_of(CUDA).execution_providers(CudaOptions(use_tf32=True))[0][1] == default | {"use_tf32": "1"}


def test_an_arena_may_have_a_limit():
    options = CudaOptions(gpu_mem_limit=8 * 2**30, arena_extend_strategy="kSameAsRequested")
    assert sessions_of(CUDA).execution_providers(options)[0][1] == {
        "use_tf32": "0", "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": "8589934592",
    }  # fmt: skip
    assert sessions_of(CPU).execution_providers(options) == [CPU.execution_provider]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_tf32": 1}, "use_tf32 is 1 (int); it must be True or False."),
        ({"enable_cuda_graph": 1}, "enable_cuda_graph is 1 (int); it must be True or False."),
        ({"gpu_mem_limit": "8GB"}, "gpu_mem_limit is '8GB' (str); it must be a whole number."),
        ({"gpu_mem_limit": 0}, "gpu_mem_limit is 0; it must be between 1 and 9,223,372,036,854,775,807."),
        (
            {"arena_extend_strategy": "doubling"},
            "arena_extend_strategy is 'doubling' (str); it must be kNextPowerOfTwo or kSameAsRequested.",
        ),
        ({"arena_extend_strategy": []}, "arena_extend_strategy is [] (list); it must be kNextPowerOfTwo"),
    ],
)
def test_other_values_are_refused_by_their_name(options, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        CudaOptions(**options)


@pytest.fixture
def opened(monkeypatch):
    """Sessions that run on the CPU and say that they run on CUDA; a list of what was called for each."""
    calls, real = [], ort.InferenceSession
    sessions.session_options(1)  # tries a product once a process, in a session that is not meant

    class OnTheCpu(real):
        def __init__(self, graph, options, *, providers, enable_fallback):
            calls.append(providers[0])
            super().__init__(graph, options, providers=[CPU.execution_provider])

        def get_providers(self):
            return ["CUDAExecutionProvider", CPU.execution_provider]

    monkeypatch.setattr(ort, "InferenceSession", OnTheCpu)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU.execution_provider])
    monkeypatch.setattr(ort, "preload_dlls", lambda: calls.append("preload"), raising=False)
    monkeypatch.setattr(cuda, "cuda_machine", lambda ort: SimpleNamespace(problem=None))
    sessions._graph_session.cache_clear()
    yield calls
    sessions._graph_session.cache_clear()


@pytest.mark.parametrize(("name", "graphs"), [("tiny-llama", 1), ("tiny-embed", 1), ("tiny-translate", 2)])
def test_every_graph_of_a_model_is_opened_with_cuda_options(tmp_path, opened, name, graphs):
    bundle = export_model(name, tmp_path / name, precision="fp16", provider="cuda", verify=None).path
    opened.clear()
    assert load(bundle, "cuda", provider_options=CudaOptions(use_tf32=True, gpu_mem_limit=2**30)).provider is CUDA
    expected = {"use_tf32": "1", "arena_extend_strategy": "kNextPowerOfTwo", "gpu_mem_limit": str(2**30)}
    assert opened == ["preload", ("CUDAExecutionProvider", expected)] * graphs


def test_a_draft_model_has_those_of_its_model(tmp_path, opened):
    bundle = export_model("tiny-llama", tmp_path / "lm", precision="fp16", provider="cuda", verify=None).path
    opened.clear()
    load(bundle, "cuda", draft=bundle, provider_options=CudaOptions(use_tf32=True))
    assert [call[1]["use_tf32"] for call in opened if call != "preload"] == ["1", "1"]


def test_only_runs_that_name_a_cuda_graph_are_captured(tmp_path, opened):
    bundle = export_model("tiny-llama", tmp_path / "lm", precision="fp16", provider="cuda", verify=None).path
    opened.clear()
    model = load(bundle, "cuda", provider_options=CudaOptions(enable_cuda_graph=True))
    assert [call[1]["enable_cuda_graph"] for call in opened if call != "preload"] == ["1"]
    assert model.session._uncaptured.get_run_config_entry("gpu_graph_id") == "-1"
    assert load(bundle, "cuda").session._uncaptured is None


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (CudaOptions(enable_cuda_graph=True), RequestError, r"^CUDA graphs cannot capture \S+model\.onnx: onnxruntime"),
        (CudaOptions(), BundleError, r"^onnxruntime cannot load \S+model\.onnx: .* does not support graph capture"),
    ],
)
def test_a_graph_that_cannot_be_captured_is_named(tmp_path, opened, monkeypatch, options, kind, message):
    """onnxruntime says so when it opens the session."""
    bundle = export_model("tiny-llama", tmp_path / "lm", precision="fp16", provider="cuda", verify=None).path

    def fails(*arguments, **options):
        raise RuntimeError("This session does not support graph capture")

    monkeypatch.setattr(ort.InferenceSession, "__init__", fails)
    with pytest.raises(kind, match=message):
        load(bundle, "cuda", provider_options=options)


@pytest.mark.parametrize("name", ["tiny-embed", "tiny-translate"])
def test_models_without_steps_at_fixed_addresses_are_refused(tmp_path, opened, name):
    bundle = export_model(name, tmp_path / "b", precision="fp16", provider="cuda", verify=None).path
    with pytest.raises(RequestError, match=r"^enable_cuda_graph is for decoder-only models with a static cache"):
        load(bundle, "cuda", provider_options=CudaOptions(enable_cuda_graph=True))


def test_a_dynamic_cache_is_refused(tmp_path, opened):
    bundle = export_model("tiny-llama", tmp_path / "b", ops="portable", verify=None).path
    with pytest.raises(RequestError, match="has a dynamic cache.$"):
        load(bundle, "cuda", provider_options=CudaOptions(enable_cuda_graph=True))
    assert load(bundle, "cpu", provider_options=CudaOptions(enable_cuda_graph=True)).provider is CPU


def test_a_session_of_verification_has_no_tf32(tmp_path, opened):
    """Verification opens sessions of graphs by themselves, and names no options."""
    bundle = export_model("tiny-llama", tmp_path / "lm", precision="fp16", provider="cuda", verify=None).path
    opened.clear()
    open_session(bundle / "onnx" / "model.onnx", CUDA, prepack=False)
    assert [call[1]["use_tf32"] for call in opened if call != "preload"] == ["0"]
