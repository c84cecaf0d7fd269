"""Other clients write our greedy tokens about the same pixel values, those of transformers' processor.

The programs are those of `examples/`. `check` says of each family whether a client does.
"""

import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime_genai as og
import pytest
from picture_text_rows import MARKS, MODELS, save
from PIL import Image
from slow_rows import slow_after, slow_unless
from tower_models import exporter

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))  # the folders of tools/ are packages

from verification.client_programs.browser import BrowserClient, link_bundle, served
from verification.client_programs.browser import program as program_of
from verification.client_programs.chromium import open_chromium
from verification.client_programs.client import EXAMPLES, Places
from verification.client_programs.programs import NodeClient, with_modules

from edgeformer.check import check
from edgeformer.errors import ParityError
from edgeformer.export import export_model
from edgeformer.export import graph_forms as writers
from edgeformer.export.importers.pictures.library_processor import library_processor
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

STEPS = 8
PICTURES = [np.random.default_rng(index).integers(0, 256, (30 + 30 * index, 50, 3), np.uint8) for index in range(2)]
CASES = [(family, "clamped" if family == "gemma4" else next(iter(models))) for family, models in MODELS.items()]
BY_PYTHON = {
    "gemma3", "idefics3", "internvl", "llava", "paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
    "qwen3_5", "qwen3_5_moe", "smolvlm", "vipllava",
}  # fmt: skip
"""Families whose pictures the program over onnxruntime is made for."""
BY_NODE = BY_PYTHON - {"gemma3", "internvl", "paligemma", "vipllava"}
BY_GENAI = {"qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
ALWAYS = {"gemma3", "paligemma", "smolvlm", "qwen2_vl", "qwen3_vl", "lfm2_vl", "llava_onevision"}


def rows(families=None, always=ALWAYS):
    """Return the models of some families, of which some run by default."""
    found = [case for case in CASES if families is None or case[0] in families]
    return slow_unless([case for case in found if case[0] in always], found)


def program(name):
    """Return a program of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", EXAMPLES / "pictures" / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def of(family, name):
        folder = tmp_path_factory.mktemp(family)
        save(family, name, folder)
        return SimpleNamespace(folder=folder, processor=library_processor(folder))

    return of


@pytest.fixture(scope="module")
def bundles(models, tmp_path_factory):
    return exporter(models, tmp_path_factory, set(CASES) - {("qwen3_vl", "deepstack")})


@pytest.fixture(scope="module")
def places():
    return Places(node_modules=EXAMPLES / "node" / "node_modules")


@pytest.fixture
def prompts(models, bundles):
    """Return a function that returns prompts with one and with two pictures.

    Each is what transformers' processor makes of it, and the tokens that our runtime writes, up to the one that ends
    the text.
    """

    def of(family, name):
        runtime, processor = load(bundles(family, name), "cpu", 1), models(family, name).processor
        mark, found = MARKS.get(family, "<image>"), []
        for text, pictures in ((f"Look at {mark} Which is left?", PICTURES[1:]), (f"{mark}{mark} Which?", PICTURES)):
            inputs = processor(text=[text], images=[pictures], return_tensors="pt").items()
            written = runtime.generate(text, images=pictures, max_new_tokens=STEPS).token_ids
            found.append(({key: value.numpy() for key, value in inputs}, written))
        return found

    return of


def without_end(bundle, tokens):
    return [token for token in tokens if token not in Manifest.read(bundle).tokens.eos]


@pytest.mark.parametrize(("family", "name"), rows())
def test_plain_onnxruntime(bundles, prompts, family, name):
    answer = program("python_onnxruntime.py").answer
    for inputs, expected in prompts(family, name):
        given = bundles(family, name), inputs["input_ids"][0].tolist(), inputs, STEPS
        if family in BY_PYTHON:
            assert list(answer(*given)) == without_end(bundles(family, name), expected)
            if family == "smolvlm":  # of other pixels it writes something else
                assert list(answer(*given[:2], inputs | {"pixel_values": -inputs["pixel_values"]}, STEPS)) != expected
        else:
            with pytest.raises(SystemExit, match="does not prepare pictures"):
                list(answer(*given))


def in_node(bundle, inputs, places, folder):
    """Return what transformers.js writes about the values of a processor, or how its error begins."""
    values = {
        key: {"dims": value.shape, "data": value.ravel().tolist()}
        for key, value in inputs.items()
        if key in ("input_ids", "pixel_values", "image_grid_thw")
    }
    (folder / "values.json").write_text(json.dumps(values))
    with with_modules(EXAMPLES / "node", places) as place:
        line = ["node", "picture.mjs", bundle, "--values", folder / "values.json", "--new-tokens", str(STEPS)]
        done = subprocess.run(line, cwd=place, capture_output=True, text=True, check=False)
    return list(map(int, done.stdout.split())) if done.returncode == 0 else done.stderr


@pytest.mark.parametrize(("family", "name"), rows())
def test_transformers_js(bundles, prompts, places, tmp_path, family, name):
    lacking = NodeClient().missing(places)
    if lacking is not None:
        pytest.skip(f"2026-11-29: needs a client that pip does not install here: {lacking}")
    bundle = bundles(family, name)
    report, cases = check(bundle), prompts(family, name)
    found = [in_node(bundle, inputs, places, tmp_path) for inputs, _ in cases]
    if family in BY_NODE:
        assert report.verdict("transformers.js-node") == "loads", report.clients["transformers.js-node"]
        assert found == [expected for _, expected in cases]
    else:
        assert report.verdict("transformers.js-node") == "does not load"
        assert all("Error" in each for each in found)


PAGE = """
<script type="module">
import { AutoModelForImageTextToText, env, Tensor } from
  "./node_modules/@huggingface/transformers/dist/transformers.min.js";
env.allowLocalModels = true;
env.localModelPath = "./";
env.allowRemoteModels = false;
env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", location.href).href;
async function run() {
  const model = await AutoModelForImageTextToText.from_pretrained("model");
  const { input_ids, pixel_values } = await (await fetch("values.json")).json();
  const output = await model.generate({
    input_ids: new Tensor("int64", input_ids.data.map(BigInt), input_ids.dims),
    attention_mask: new Tensor("int64", input_ids.data.map(() => 1n), input_ids.dims),
    pixel_values: new Tensor("float32", pixel_values.data, pixel_values.dims),
    max_new_tokens: STEPS,
    do_sample: false,
  });
  return output.tolist()[0].slice(input_ids.data.length).join(" ");
}
run().then((found) => (window.found = found), (error) => (window.found = `Error: ${error.message ?? error}`));
</script>
"""


def test_transformers_js_in_a_browser(models, prompts, places, tmp_path):
    lacking = BrowserClient().missing(places)
    if lacking is not None:
        pytest.skip(f"2026-11-29: needs a client that pip does not install here: {lacking}")
    case = ("smolvlm", "tiles")
    bundle = export_model(
        models(*case).folder, tmp_path / "bundle", deployment="web", precision="fp32", verify=None
    ).path
    assert check(bundle).verdict("transformers.js-browser") == "loads"
    [(inputs, expected), _] = prompts(*case)
    values = {name: {"dims": inputs[name].shape, "data": inputs[name].ravel().tolist()} for name in MADE}
    with with_modules(EXAMPLES / "browser", places) as folder:
        link_bundle(bundle, Path(folder) / "model", words_are_ids=False)
        (Path(folder) / "values.json").write_text(json.dumps(values))
        (Path(folder) / "page.html").write_text(PAGE.replace("STEPS", str(STEPS)))
        with served(Path(folder)) as address, open_chromium(program_of(places), 60) as page:
            page.open(f"{address}/page.html")
            page.wait_for("window.found")
            assert page.value("window.found") == " ".join(map(str, expected))


MADE = ("input_ids", "pixel_values")


def in_genai(bundle, inputs):
    """Return what onnxruntime-genai writes about the values of a processor."""
    token = Manifest.read(bundle).placeholder.token
    given = og.NamedTensors()
    given["input_ids"] = inputs["input_ids"].astype(np.int32)
    given["pixel_values"], given["image_grid_thw"] = inputs["pixel_values"], inputs["image_grid_thw"]
    given["num_image_tokens"] = np.array([(inputs["input_ids"] == token).sum()], np.int64)
    return list(program("genai.py").generate(og.Model(str(bundle)), given, STEPS))


@pytest.mark.parametrize(("family", "name"), rows())
def test_onnxruntime_genai(bundles, prompts, family, name):
    bundle = bundles(family, name)
    report = check(bundle)
    assert report.verdict("onnxruntime-genai") == "loads", report.clients["onnxruntime-genai"]
    said = " ".join(map(str, report.clients["onnxruntime-genai"]))
    assert ("It reads text alone" in said) == (family not in BY_GENAI)
    assert ("attends both ways" in said) == (family in ("gemma3", "gemma4_unified", "paligemma"))
    if family in BY_GENAI:
        for inputs, expected in prompts(family, name):
            assert in_genai(bundle, inputs) == expected


QWEN3 = ("qwen3_vl", "deepstack")


def test_genai_reads_pictures_and_text_by_itself(bundles, tmp_path):
    """Its own processor makes our ids, and values of which it writes our tokens; text runs in the same folder."""
    runtime, model = load(bundles(*QWEN3), "cpu", 1), og.Model(str(bundles(*QWEN3)))
    text = f"Look at {MARKS['qwen3_vl']} Which is left?"
    Image.fromarray(PICTURES[1]).save(tmp_path / "a.png")
    inputs = model.create_multimodal_processor()(text, images=og.Images.open(str(tmp_path / "a.png")))
    assert inputs["input_ids"].as_numpy()[0].tolist() == runtime.see(text, PICTURES[1:]).shown
    written = list(program("genai.py").generate(model, inputs, STEPS))
    assert written == runtime.generate(text, images=PICTURES[1:], max_new_tokens=STEPS).token_ids
    ids, params = runtime.encode("Which is left?"), og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + STEPS, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([ids], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    expected = runtime.generate(ids, max_new_tokens=STEPS).token_ids
    assert generator.get_sequence(0)[len(ids) :].tolist()[: len(expected)] == expected


FORMS = [
    {"precision": "int4"}, {"precision": "fp16"}, {"precision": "int8"}, {"ops": "portable", "cache": "dynamic"},
    {"ops": "standard", "cache": "static"}, {"deployment": "desktop"},
]  # fmt: skip


@pytest.mark.parametrize("options", slow_after(1, FORMS), ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize(("family", "name"), slow_after(1, [QWEN3, ("qwen3_5", "hybrid")]))
def test_genai_reads_pictures_in_every_form(models, prompts, tmp_path, family, name, options):
    bundle = export_model(models(family, name).folder, tmp_path / "bundle", verify=None, **options).path
    runtime = load(bundle, "cpu", 1, kernels=False)
    (inputs, _), _ = prompts(family, name)
    text = f"Look at {MARKS[family]} Which is left?"
    expected = runtime.generate(text, images=PICTURES[1:], max_new_tokens=STEPS).token_ids
    assert check(bundle).verdict("onnxruntime-genai") == "loads"
    assert in_genai(bundle, inputs) == expected


def test_genai_is_told_how_wide_embeddings_are(bundles, prompts, tmp_path):
    copy = shutil.copytree(bundles(*QWEN3), tmp_path / "copy")
    config = json.loads((copy / "genai_config.json").read_text())
    config["model"]["decoder"]["hidden_size"] = 40
    (copy / "genai_config.json").write_text(json.dumps(config))
    assert check(copy).verdict("onnxruntime-genai") == "does not load"
    with pytest.raises(Exception, match="inputs_embeds"):
        in_genai(copy, prompts(*QWEN3)[0][0])


def test_states_in_wrong_places_are_refused(models, monkeypatch, tmp_path):
    """Verification compares the graph for onnxruntime-genai, which no other trial runs."""
    right = writers.with_states

    def wrong(embeddings, token):
        made = right(embeddings, token)
        (sums,) = [node for node in made.graph if node.op_type == "CumSum"]
        sums.attributes.add(onnx_attribute("exclusive", 1))
        return made

    monkeypatch.setattr(writers, "with_states", wrong)
    with pytest.raises(ParityError, match="embeddings with states of pictures"):
        export_model(models(*QWEN3).folder, tmp_path / "bundle", verify="quick")


def onnx_attribute(name, value):
    import onnx_ir as ir

    return ir.AttrInt64(name, value)


def test_a_preset_in_every_program(tmp_path, places):
    bundle = export_model("tiny-vision", tmp_path / "bundle", verify=None).path
    path = Path(__file__).parents[2] / "edgeformer" / "presets" / "tiny-vision" / "pictures" / "000.png"
    question = "How many shapes are there?"
    parts = [{"type": "image"}, {"type": "text", "text": question}]
    expected = load(bundle, "cpu", 1).chat([{"role": "user", "content": parts}], images=[path]).finish().text
    lines = {EXAMPLES / "pictures": [sys.executable, EXAMPLES / "pictures" / "python_onnxruntime.py"]}
    if NodeClient().missing(places) is None:
        lines[EXAMPLES / "node"] = ["node", "picture.mjs"]
    for folder, line in lines.items():
        done = subprocess.run([*line, bundle, question, path], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_a_graph_for_genai_shares_the_weights(bundles):
    graph = onnx.load(bundles(*QWEN3) / "onnx" / "embedding.onnx", load_external_data=False).graph
    (table,) = [each for each in graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    assert {entry.key: entry.value for entry in table.external_data}["location"] == "model.onnx_data"
