"""WebGPU itself, on an adapter of this machine or in software: right, not fast.

A driver in software is part of Chromium (SwiftShader); it compiles each kernel anew in every process, for seconds, so
that whole models are slow tests.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from webgpu_adapter import SWIFTSHADER, adapter_or_skip
from wrong_kernels import WRONG, plant

from edgeformer.errors import RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.lower.providers.webgpu import WebGpuRules
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import WEBGPU
from edgeformer.runtime import Engine, WebGpuOptions, load
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.providers.webgpu_machine import GRAPHS, failure_of, webgpu_machine
from edgeformer.runtime.sessions.session import open_session

GEMMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6, "max_position_embeddings": 128, "vocab_size": 131,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


adapter = pytest.fixture(scope="module", autouse=True)(adapter_or_skip)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The preset tiny-llama in fp32 for WebGPU. Nothing changes its files but `wrong_kernels`, beside them."""
    folder = tmp_path_factory.mktemp("bundles") / "webgpu"
    return export_model("tiny-llama", folder, provider="webgpu", verify=None).path


@pytest.mark.slow
def test_requests_get_the_tokens_of_the_cpu(bundle):
    """One by one, as a batch, and in an engine, whose rows are not all the first ones."""
    prompts = [np.random.default_rng(seed).integers(3, 129, 3 + 7 * seed).tolist() for seed in range(3)]
    expected = [each.token_ids for each in load(bundle, "cpu").generate(prompts, max_new_tokens=8)]
    model = load(bundle, "webgpu")
    assert model.provider is WEBGPU and "WebGpuExecutionProvider" in model.session.get_providers()
    assert [model.generate(each, max_new_tokens=8).token_ids for each in prompts] == expected
    assert [each.token_ids for each in model.generate(prompts, max_new_tokens=8)] == expected
    with Engine(model, max_rows=2) as engine:
        streams = [engine.submit(each, max_new_tokens=8) for each in prompts * 2]
        assert [each.finish().token_ids for each in streams] == expected * 2


@pytest.mark.slow
def test_300_free_steps_write_the_tokens_of_the_cpu(bundle):
    """Greedy tokens in float32: each step reads what the ones before it wrote, and the cache grows past 128 tokens."""
    prompt = np.random.default_rng(0).integers(3, 129, 12).tolist()
    options = {"max_new_tokens": 300, "ignore_eos": True}
    expected = load(bundle, "cpu").generate(prompt, **options).token_ids
    found = load(bundle, "webgpu").generate(prompt, **options).token_ids
    assert len(expected) == 300 and len(set(expected)) > 20, "a text that repeats itself proves little"
    assert found == expected


@pytest.mark.slow
def test_an_encoder_decoder_writes_the_tokens_of_the_cpu(tmp_path):
    """The preset tiny-translate, as far as its context goes."""
    path = export_model("tiny-translate", tmp_path / "bundle", provider="webgpu", verify=None).path
    expected = load(path, "cpu").generate("The cat sees a dog.", max_new_tokens=32).text
    assert load(path, "webgpu").generate("The cat sees a dog.", max_new_tokens=32).text == expected
    assert "Katze" in expected


@pytest.mark.slow
def test_a_bundle_is_verified_on_its_provider(bundle):
    report = verify(bundle, mode="quick")
    assert report.passed, report.failures()
    assert report.environment["provider"] == "webgpu" and "onnxruntime-ep-webgpu" in report.environment["device"]
    assert report.unproved is None


@pytest.mark.slow
def test_a_wrong_kernel_is_found(make_model, tmp_path, monkeypatch):
    """Attention with a soft-cap, which the kernel ignores, where the rule that keeps the kernel from it is gone."""
    folder = make_model("gemma2", 3, attn_logit_softcapping=1.0, **GEMMA)
    monkeypatch.setattr(WebGpuRules, "attention", lambda *arguments: None)
    report = verify(export_model(folder, tmp_path / "wrong", provider="webgpu", verify=None).path, folder, mode="quick")
    assert report.environment["provider"] == "webgpu" and not report.passed
    assert any("max error" in check.name for check in report.failures())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"VK_ICD_FILENAMES": "/nonexistent.json"},
            "No supported adapters. Install a driver for Vulkan. To run",
        ),
        ({"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "0"}, "Onnxruntime sees no GPU. Install its driver, on a machine wi"),
    ],
    ids=["no driver", "no GPU"],
)
def test_what_this_machine_lacks_is_named(bundle, changes, message):
    """In a process of its own, whose environment lacks it: a plugin looks for drivers once."""
    if os.environ.get("VK_ICD_FILENAMES") != str(SWIFTSHADER):
        pytest.skip("2026-11-28: with another driver than SwiftShader the environment does not decide what there is")
    program = f"from edgeformer.runtime import load; load({str(bundle)!r}, 'webgpu')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | changes, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "provider webgpu cannot start: onnxruntime" in done.stderr and message in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("power_preference", "fast", "Invalid power preference: fast"),
        ("validation_mode", "none", "Invalid validation mode: none"),
        ("max_storage_buffer_binding_size", "large", "Invalid maxStorageBufferBindingSize value: large"),
    ],
)
def test_options_reach_the_plugin(option, value, message):
    """The plugin itself refuses values that it does not know, where our own check of them is left out."""
    options = WebGpuOptions()
    object.__setattr__(options, option, value)
    said = failure_of(ort, options, GRAPHS["float32"], {"a": np.ones(1, np.float32)})
    assert said is not None and message in said


@pytest.mark.slow
def test_every_option_computes_the_same(bundle):
    options = WebGpuOptions(
        power_preference="high-performance", validation_mode="full", max_storage_buffer_binding_size=2**27
    )
    expected = load(bundle, "cpu").generate("Once upon a time", max_new_tokens=4).token_ids
    model = load(bundle, "webgpu", provider_options=options)
    assert model.generate("Once upon a time", max_new_tokens=4).token_ids == expected


@pytest.mark.slow
def test_a_weight_that_no_buffer_takes_is_refused(tmp_path, adapter):
    """SwiftShader has buffers of less than a GiB. The weight is a file without blocks."""
    if os.environ.get("VK_ICD_FILENAMES") != str(SWIFTSHADER):
        pytest.skip("2026-11-28: another driver than SwiftShader may have the buffer")
    rows = 1200 * 2**20 // 4096
    text = """<ir_version: 8, opset_import: ["" : 14]>
    pick (int32[1] a) => (float[1, 1024] c) { c = Gather (weight, a) }"""
    model = onnx.parser.parse_model(text)
    tensor = model.graph.initializer.add(name="weight", data_type=1, dims=[rows, 1024], data_location=1)
    for key, value in (("location", "weight.bin"), ("length", str(rows * 4096))):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "weight.bin").touch()
    os.truncate(tmp_path / "weight.bin", rows * 4096)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(RequestError, match="a weight, weight, of 1,258 MB, and the adapter has no .* of 629 MB works."):
        open_session(tmp_path / "model.onnx", WEBGPU, options=adapter)


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_are_refused(bundle, monkeypatch, fault):
    plant(monkeypatch, fault)
    report = verify(bundle, mode="quick")
    assert report.environment["provider"] == "webgpu" and not report.passed
    assert any("max error" in check.name for check in report.failures())


def test_swiftshader_has_no_float16_and_small_subgroups(bundle, adapter):
    """A trial of the adapter finds both."""
    if os.environ.get("VK_ICD_FILENAMES") != str(SWIFTSHADER):
        pytest.skip("2026-11-28: another driver than SwiftShader may have either")
    manifest = Manifest.read(bundle)
    half = replace(manifest, plan=replace(manifest.plan, precision="fp16", arithmetic="fp16"))
    assert webgpu_machine(ort, adapter).software
    assert sessions_of(WEBGPU).lacks_machine(ort, half) and not sessions_of(WEBGPU).lacks_machine(ort, manifest)
    assert sessions_of(WEBGPU).most_tokens(ort) == 31
