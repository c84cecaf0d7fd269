"""WebGPU itself, on an adapter of this machine or in software: right, not fast.

A driver in software is part of Chromium (SwiftShader); it compiles each kernel anew in every process, for seconds, so
that whole models are slow tests.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeformer.errors import BundleError
from edgeformer.export import export_model, verify
from edgeformer.export.lower.providers.webgpu import WebGpuRules
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU, WEBGPU
from edgeformer.runtime import Engine, WebGpuOptions, load
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.providers.webgpu_machine import webgpu_machine
from edgeformer.runtime.sessions.session import open_session

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
HEADS, KEYS, SIZE, SLOTS = 4, 2, 16, 12
GEMMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6, "max_position_embeddings": 128, "vocab_size": 131,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def adapter():
    """The options of an adapter, in software where there is no other; tests say what is missing where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform.startswith("linux") and "VK_ICD_FILENAMES" not in os.environ and SWIFTSHADER.is_file():
            patch.setenv("VK_ICD_FILENAMES", str(SWIFTSHADER))
        patch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
        options = WebGpuOptions()
        machine = webgpu_machine(ort, options)
        if machine.problem is not None:
            pytest.skip(f"2026-11-27: WebGPU takes a plugin, a loader and a driver. {machine}: {machine.problem}")
        yield options


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The preset tiny-llama in fp32 for WebGPU. Read-only."""
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


def attention_graph(**attributes):
    """Write a GroupQueryAttention of one sequence of 7 tokens over an empty cache."""
    inputs = {"q": [1, 7, HEADS * SIZE], "k": [1, 7, KEYS * SIZE], "v": [1, 7, KEYS * SIZE]}
    inputs |= {name: [1, KEYS, SLOTS, SIZE] for name in ("pk", "pv")}
    integers = {"lengths": [1], "total": []}
    node = onnx.helper.make_node(
        "GroupQueryAttention", [*inputs, *integers], ["o", "nk", "nv"], domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=KEYS, **attributes,
    )  # fmt: skip
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    values += [onnx.helper.make_tensor_value_info(name, 6, shape) for name, shape in integers.items()]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("o", "nk", "nv")]
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}
    feeds |= {"lengths": np.array([6], np.int32), "total": np.array(7, np.int32)}
    return _model([node], values, outputs), feeds


def _model(nodes, inputs, outputs):
    graph = onnx.helper.make_graph(nodes, "graph", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def outputs_on(provider, model, feeds, folder):
    path = folder / f"{provider.name}.onnx"
    onnx.save(model, path)
    return open_session(path, provider, threads=1).run(["o"], feeds)[0]


def test_the_kernel_of_attention_has_the_limits_that_rules_say(tmp_path):
    """Each limit of export/lower/providers/webgpu.py; a plugin that lifts one fails here."""
    model, feeds = attention_graph(local_window_size=4)
    found, expected = (outputs_on(each, model, feeds, tmp_path) for each in (WEBGPU, CPU))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    model, feeds = attention_graph(softcap=2.0)
    found, expected = (outputs_on(each, model, feeds, tmp_path) for each in (WEBGPU, CPU))
    assert np.abs(found - expected).max() > 1e-2
    np.testing.assert_allclose(found, outputs_on(CPU, *attention_graph(), tmp_path), atol=1e-5)  # it ignores the cap
    with pytest.raises(BundleError, match="causal=0 is not implemented"):
        outputs_on(WEBGPU, *attention_graph(causal=0), tmp_path)


def test_attention_to_a_source_takes_no_mask(tmp_path):
    node = onnx.helper.make_node(
        "MultiHeadAttention", ["q", "k", "v", "", "mask"], ["o"], domain="com.microsoft", num_heads=2
    )
    shapes = {"q": [1, 3, 16], "k": [1, 2, 5, 8], "v": [1, 2, 5, 8]}
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    values.append(onnx.helper.make_tensor_value_info("mask", 6, [1, 5]))
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | {"mask": np.ones((1, 5), np.int32)}
    model = _model([node], values, [onnx.helper.make_tensor_value_info("o", 1, None)])
    with pytest.raises(BundleError, match="`key_padding_mask` not implemented"):
        outputs_on(WEBGPU, model, feeds, tmp_path)


def test_swiftshader_has_no_float16_and_small_subgroups(bundle, adapter):
    """A trial of the adapter finds both."""
    if os.environ.get("VK_ICD_FILENAMES") != str(SWIFTSHADER):
        pytest.skip("2026-11-28: another driver than SwiftShader may have either")
    manifest = Manifest.read(bundle)
    half = replace(manifest, plan=replace(manifest.plan, precision="fp16", arithmetic="fp16"))
    assert webgpu_machine(ort, adapter).software
    assert sessions_of(WEBGPU).lacks_machine(ort, half) and not sessions_of(WEBGPU).lacks_machine(ort, manifest)
    assert sessions_of(WEBGPU).most_tokens(ort) == 31
