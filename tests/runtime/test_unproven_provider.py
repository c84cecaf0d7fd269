"""Providers that onnxruntime alone knows. AzureExecutionProvider, of every wheel, leaves all nodes to the CPU."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import onnxruntime as ort
import pytest
from click.testing import CliRunner
from webgpu_adapter import adapter_or_skip
from wrong_kernels import WRONG, plant

from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.export import export_model, verify
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, unproven_provider
from edgeformer.runtime import load
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import choose_provider

NAME = "AzureExecutionProvider"
PLUGIN = "WebGpuExecutionProvider"
PROMPT = [5, 6, 7]

pytestmark = pytest.mark.skipif(
    NAME not in ort.get_available_providers(), reason=f"2026-11-28: this build of onnxruntime has no {NAME}"
)

adapter = pytest.fixture(adapter_or_skip)


def test_another_provider_runs_with_a_warning(tiny_llama_bundle):
    with pytest.warns(UserWarning, match=f"^nothing was proven of {NAME}: .* verify BUNDLE --provider {NAME}$"):
        model = load(tiny_llama_bundle, NAME)
    assert model.provider.execution_provider == NAME and NAME in model.session.get_providers()
    expected = load(tiny_llama_bundle, "cpu")
    assert NAME not in expected.session.get_providers()
    tokens = [each.generate(PROMPT, max_new_tokens=4).token_ids for each in (model, expected)]
    assert tokens[0] == tokens[1]


def test_a_verification_runs_on_it_without_a_warning(tiny_llama_bundle):
    report = verify(tiny_llama_bundle, mode="quick", provider=NAME)
    assert report.passed and report.environment["provider"] == NAME
    with pytest.raises(RequestError, match="^onnxruntime .* has no NoExecutionProvider; it has AzureExecutionProvider"):
        verify(tiny_llama_bundle, mode="quick", provider="NoExecutionProvider")


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


@pytest.mark.parametrize(
    ("known", "named"), [({"library_path": "new.so"}, []), ({"version": "1"}, ["NewExecutionProvider"])]
)
def test_a_registered_plugin_is_named_by_its_devices(known, named):
    """onnxruntime lists the provider in both cases, and takes its name for one of its build alone."""
    sessions, devices = sessions_of(unproven_provider("NewExecutionProvider")), []
    found = SimpleNamespace(ep_name="NewExecutionProvider", ep_metadata=known)
    runtime = SimpleNamespace(get_available_providers=lambda: [found.ep_name], get_ep_devices=lambda: [found])
    options = SimpleNamespace(add_provider_for_devices=lambda *given: devices.append(given))
    assert sessions.choose(runtime, options) == named
    assert devices == ([] if named else [([found], {})])
    with pytest.raises(RequestError, match="opened the graph without NewExecutionProvider"):
        sessions.check_opened(ort, SimpleNamespace(get_providers=lambda: [CPU.execution_provider]))


@pytest.mark.parametrize("library", ["absent.so", "text.so"])
def test_a_file_that_is_no_plugin_is_refused(tiny_llama_bundle, tmp_path, library):
    (tmp_path / "text.so").write_text("text")
    options = ["--provider", "NewExecutionProvider", "--plugin", str(tmp_path / library)]
    said = CliRunner().invoke(cli, ["verify", str(tiny_llama_bundle), *options])
    assert said.exit_code == 1
    assert f"error: onnxruntime {ort.__version__} cannot register the plugin {tmp_path / library}: " in said.output


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
def test_a_plugin_runs_a_portable_bundle(tmp_path):
    """A plugin that nobody has proven: WebGPU's, by onnxruntime's name, in processes that do not register it for us."""
    bundle = export_model("tiny-llama", tmp_path / "bundle", ops="portable", verify=None).path
    expected = load(bundle, "cpu").generate(PROMPT, max_new_tokens=4).token_ids
    library = import_module("onnxruntime_ep_webgpu").get_library_path()
    program = (
        "import onnxruntime; from edgeformer.runtime import load; "
        f"onnxruntime.register_execution_provider_library('any', {library!r}); "
        f"model = load({str(bundle)!r}, {PLUGIN!r}); "
        f"print(model.session.get_providers()[0], model.generate({PROMPT}, max_new_tokens=4).token_ids)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == f"{PLUGIN} {expected}\n", ran.stderr
    options = ["--quick", "--json", "--provider", PLUGIN, "--plugin", library]
    command = [sys.executable, "-m", "edgeformer", "verify", str(bundle), *options]
    proven = subprocess.run(command, capture_output=True, text=True, check=False)
    assert proven.returncode == 0, proven.stderr
    assert json.loads(proven.stdout)["environment"]["provider"] == PLUGIN
