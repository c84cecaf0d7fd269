"""Bundles for browsers in a headless Chromium: weights in several files, embeddings of integers, two graphs.

transformers.js is taken from EDGEFORMER_NODE_MODULES or examples/browser/node_modules; where it or Chromium is missing
the tests are skipped and say what would install it.
"""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from verification.client_programs.browser import (
    BrowserClient,
    Quiet,
    change_file,
    link_bundle,
    open_page,
    program,
    served,
    wait,
    write,
)
from verification.client_programs.chromium import open_chromium
from verification.client_programs.client import EXAMPLES, TIMEOUT, Places
from verification.client_programs.programs import with_modules

from edgeformer.export import export_model
from edgeformer.manifest.deployment import DEPLOYMENTS
from edgeformer.runtime import load

PROMPTS = ("Once upon a time", "470 + 119 =")
SOURCE = "The cat sees a dog."

TRANSLATE = """
<script type="module">
  import { env, pipeline } from "./node_modules/@huggingface/transformers/dist/transformers.min.js";
  env.allowLocalModels = true;
  env.allowRemoteModels = false;
  env.useBrowserCache = false;
  env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", location.href).href;
  try {
    const write = await pipeline("text2text-generation", "./model", { device: "wasm" });
    const [{ generated_text }] = await write(SOURCE, { max_new_tokens: 32, num_beams: 1, do_sample: false });
    window.answer = generated_text;
  } catch (error) {
    window.answer = `It does not work: ${error.message}`;
  }
</script>
"""


@pytest.fixture(scope="module")
def places():
    modules = os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "browser" / "node_modules")
    found = Places(node_modules=Path(modules))
    lacking = BrowserClient().missing(found)
    if lacking is not None:
        pytest.skip(f"2026-11-22: needs a client that pip does not install here: {lacking}")
    return found


@pytest.fixture(scope="module")
def writer(places, tmp_path_factory):
    """Return the preset with weights split into files of a megabyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DEPLOYMENTS, "web", replace(DEPLOYMENTS["web"], largest_data=1 << 20))
        bundle = tmp_path_factory.mktemp("writer") / "bundle"
        return export_model("tiny-llama", bundle, deployment="web", verify=None).path


def test_a_page_writes_what_our_runtime_writes(writer, places):
    assert len(list((writer / "onnx").glob("model.onnx_data*"))) == 5
    with open_page(writer, places) as page:
        for prompt in PROMPTS:
            expected = load(writer).generate(prompt, max_new_tokens=64).token_ids
            assert [int(word) for word in write(page, prompt).split()] == expected


def with_counts(bundle, copy, counts):
    """Return a copy of a bundle whose config.json lists other weight files."""
    shutil.copytree(bundle, copy)
    config = json.loads((copy / "config.json").read_text())
    config["transformers.js_config"]["use_external_data_format"] |= counts
    change_file(copy, "config.json", config)
    return copy


def test_a_file_that_is_not_counted_is_missed(writer, places, tmp_path):
    bundle = with_counts(writer, tmp_path / "bundle", {"model.onnx": 4})
    with pytest.raises(RuntimeError, match="It does not work here"), open_page(bundle, places):
        pass


def said(page, part):
    return page.value(f"document.querySelector('#{part}').textContent")


@pytest.fixture(scope="module")
def for_gpu(tmp_path_factory):
    """Return the preset in float32 for WebGPU in browsers."""
    bundle = tmp_path_factory.mktemp("gpu") / "bundle"
    options = {"deployment": "web", "provider": "webgpu", "precision": "fp32"}
    return export_model("tiny-llama", bundle, verify=None, **options).path


@pytest.mark.slow
def test_a_page_writes_on_webgpu_what_the_cpu_writes(writer, for_gpu, places):
    """In Chromium's own driver in software; files come from the browser's cache the second time."""
    expected = load(for_gpu, "cpu").generate(PROMPTS[0], max_new_tokens=64).token_ids
    with open_page(writer, places, for_gpu=for_gpu, asks="?device=webgpu", webgpu=True) as page:
        if said(page, "device") != "WebGPU":
            pytest.skip(f"2026-11-28: this Chromium has no WebGPU: {said(page, 'why')}")
        assert said(page, "files").endswith("MB/s")
        assert [int(word) for word in write(page, PROMPTS[0]).split()] == expected
        page.open(page.value("location.href") + "&again")
        wait(page)
        assert said(page, "files").endswith("from this browser’s cache")


@pytest.mark.parametrize(
    ("asks", "webgpu", "why"),
    [
        ("?device=webgpu", False, "WebGPU found no GPU"),
        ("", True, "WebGPU (would compute in software|found no GPU)"),
        ("?device=wasm", True, "the address asks for it"),
    ],
)
@pytest.mark.slow
def test_without_a_gpu_the_page_takes_webassembly(writer, for_gpu, places, asks, webgpu, why):
    with open_page(writer, places, for_gpu=for_gpu, asks=asks, webgpu=webgpu) as page:
        assert said(page, "device") == "WebAssembly"
        assert re.fullmatch(f"computes tiny-llama: {why}.", said(page, "why"))
        expected = load(writer).generate(PROMPTS[0], max_new_tokens=64).token_ids
        assert [int(word) for word in write(page, PROMPTS[0]).split()] == expected


CHOICE = """<!doctype html>
<script type="module">
  import { chooseDevice } from "./device.js";
  const adapter = { features: new Set(FEATURES), info: {} };
  Object.defineProperty(navigator, "gpu", { value: { requestAdapter: async () => adapter } });
  const { device, why, folder } = await chooseDevice(null);
  window.choice = [device, why, folder];
</script>
"""
"""A page that chooses as the example does, on a GPU with FEATURES of WebGPU."""


@pytest.mark.parametrize(
    ("there", "features", "choice"),
    [
        (
            "float16 and float32",
            ["shader-f16"],
            ["webgpu", "this browser has a GPU for it, and it has float16", "-f16"],
        ),
        ("float16 and float32", [], ["webgpu", "this browser has a GPU for it", ""]),
        ("float32", ["shader-f16"], ["webgpu", "this browser has a GPU for it", ""]),
        ("float16", [], ["wasm", "the GPU has no float16, in which the bundle for WebGPU computes", None]),
        ("", ["shader-f16"], ["wasm", "there is no bundle for WebGPU at ./model-webgpu", None]),
    ],
)
def test_a_gpu_with_float16_gets_its_bundle(places, tmp_path, there, features, choice):
    """To choose, the page reads nothing but manifests. A GPU of the test stands in for the browser's."""
    arithmetics = {"model": "fp32"} | {
        folder: arithmetic
        for folder, arithmetic, name in (("model-webgpu-f16", "fp16", "float16"), ("model-webgpu", "fp32", "float32"))
        if name in there
    }
    shutil.copy(EXAMPLES / "browser" / "device.js", tmp_path)
    (tmp_path / "index.html").write_text(CHOICE.replace("FEATURES", json.dumps(features)))
    for folder, arithmetic in arithmetics.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "edgeformer.json").write_text(json.dumps({"plan": {"arithmetic": arithmetic}}))
    device, why, suffix = choice
    with served(tmp_path) as address, open_chromium(program(places), TIMEOUT) as page:
        page.open(f"{address}/index.html")
        page.wait_for("window.choice !== undefined")
        found = page.value("window.choice")
    assert found == [device, why, "./model" if suffix is None else f"./model-webgpu{suffix}"]


def test_a_file_of_another_size_is_refused(writer, places, tmp_path):
    bundle = shutil.copytree(writer, tmp_path / "bundle")
    data = bundle / "onnx" / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:-1])
    message = r"model.onnx_data has \d+ bytes, and edgeformer.json says"
    with pytest.raises(RuntimeError, match=message), open_page(bundle, places):
        pass


def test_a_download_that_broke_off_goes_on(writer, places, tmp_path, monkeypatch):
    """A file that ends early is brought again, and the others come from the browser's cache."""
    bundle = shutil.copytree(writer, tmp_path / "bundle")
    data = bundle / "onnx" / "model.onnx_data"
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    count = (
        "caches.open('edgeformer-bundles').then((cache) => cache.keys()).then((keys) => (window.kept = keys.length))"
    )
    others = len(list((bundle / "onnx").glob("model.onnx_data_*")))
    asked = []
    monkeypatch.setattr(Quiet, "log_message", lambda self, *_: asked.append(self.path))
    with with_modules(EXAMPLES / "browser", places) as folder:
        link_bundle(bundle, Path(folder) / "model", words_are_ids=False)
        with served(Path(folder)) as address, open_chromium(program(places), TIMEOUT) as page:
            page.open(f"{address}/index.html")
            with pytest.raises(RuntimeError, match=r"model.onnx_data has \d+ bytes"):
                wait(page)
            page.wait_for(f"({count}, window.kept > {others})")  # files that are on their way go on
            data.write_bytes(whole)
            assert sum("onnx_data" in each for each in asked) > others
            asked.clear()
            page.open(f"{address}/index.html?again")
            wait(page)
            assert [each for each in asked if "onnx_data" in each] == ["/model/onnx/model.onnx_data"]
            expected = load(writer).generate(PROMPTS[0], max_new_tokens=64).token_ids
            assert [int(word) for word in write(page, PROMPTS[0]).split()] == expected


def translation(bundle, places):
    """Return what a page generates for a source text."""
    with with_modules(EXAMPLES / "browser", places) as folder:
        link_bundle(bundle, Path(folder) / "model", words_are_ids=False)
        (Path(folder) / "translate.html").write_text(TRANSLATE.replace("SOURCE", json.dumps(SOURCE)))
        with served(Path(folder)) as address, open_chromium(program(places), TIMEOUT) as page:
            page.open(f"{address}/translate.html")
            page.wait_for("window.answer !== undefined")
            return page.value("window.answer")


def test_a_page_translates_as_our_runtime_does(places, tmp_path):
    bundle = export_model("tiny-translate", tmp_path / "web", deployment="web", verify=None).path
    expected = load(bundle).generate(SOURCE, max_new_tokens=32).text
    assert translation(bundle, places) == expected
    assert "Katze" in expected
    unnamed = with_counts(bundle, tmp_path / "unnamed", {"encoder_model.onnx": 0})
    assert translation(unnamed, places).startswith("It does not work")
