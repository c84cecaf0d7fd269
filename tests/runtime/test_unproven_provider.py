"""Providers that onnxruntime alone knows. AzureExecutionProvider, of every wheel, leaves all nodes to the CPU."""

from dataclasses import replace
from types import SimpleNamespace

import onnxruntime as ort
import pytest
from wrong_kernels import WRONG, plant

from edgeformer.errors import RequestError
from edgeformer.export import verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, unproven_provider
from edgeformer.runtime import load
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import choose_provider

NAME = "AzureExecutionProvider"
PROMPT = [5, 6, 7]

pytestmark = pytest.mark.skipif(
    NAME not in ort.get_available_providers(), reason=f"2026-11-28: this build of onnxruntime has no {NAME}"
)


def test_another_provider_runs_with_a_warning(tiny_llama_bundle):
    with pytest.warns(UserWarning, match=f"^nothing was proven of {NAME}: .* verify BUNDLE --provider {NAME}$"):
        model = load(tiny_llama_bundle, NAME)
    assert model.provider.execution_provider == NAME and NAME in model.session.get_providers()
    expected = load(tiny_llama_bundle, "cpu")
    assert NAME not in expected.session.get_providers()
    tokens = [each.generate(PROMPT, max_new_tokens=4).token_ids for each in (model, expected)]
    assert tokens[0] == tokens[1]


@pytest.mark.filterwarnings("ignore:nothing was proven")
def test_a_verification_runs_on_it(tiny_llama_bundle):
    report = verify(tiny_llama_bundle, mode="quick", provider=NAME)
    assert report.passed and report.environment["provider"] == NAME
    with pytest.raises(RequestError, match="^onnxruntime .* has no NoExecutionProvider; it has AzureExecutionProvider"):
        verify(tiny_llama_bundle, mode="quick", provider="NoExecutionProvider")


@pytest.mark.filterwarnings("ignore:nothing was proven")
@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_of_it_are_refused(tiny_llama_bundle, monkeypatch, fault):
    plant(monkeypatch, fault)
    report = verify(tiny_llama_bundle, mode="quick", provider=NAME)
    assert not report.passed and any("max error" in check.name for check in report.failures())


def test_a_bundle_for_a_device_is_refused(tiny_llama_bundle):
    manifest = Manifest.read(tiny_llama_bundle)
    cuda = replace(manifest, plan=replace(manifest.plan, provider="cuda"))
    with pytest.raises(RequestError, match=f"^this bundle is for CUDA, and {NAME} takes graphs for the CPU. Export it"):
        choose_provider(NAME, cuda)


def test_a_registered_plugin_is_named_by_its_devices():
    sessions, devices = sessions_of(unproven_provider("NewExecutionProvider")), []
    plugin = SimpleNamespace(ep_name="NewExecutionProvider")
    runtime = SimpleNamespace(get_available_providers=lambda: [CPU.execution_provider], get_ep_devices=lambda: [plugin])
    options = SimpleNamespace(add_provider_for_devices=lambda *given: devices.append(given))
    assert sessions.choose(runtime, options) == [] and devices == [([plugin], {})]
    with pytest.raises(RequestError, match="opened the graph without NewExecutionProvider"):
        sessions.check_opened(ort, SimpleNamespace(get_providers=lambda: [CPU.execution_provider]))
