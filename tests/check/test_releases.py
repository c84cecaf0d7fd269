"""Each client and provider is held to the limits of its release of onnxruntime, and these are as the release says."""

import json
import subprocess

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from run_clients import require
from verification.client_programs.programs import NodeClient

from edgeformer.check import check
from edgeformer.check.providers.kernel_table import kernel_table
from edgeformer.check.session_rules import CPU, GPU, NODE, WEB

JS = ("transformers.js-node", "transformers.js-browser")

# Opens each graph in Node, by the package's native library or as browsers do, and prints what it refuses.
OPEN = """
const [packages, name, provider, ...files] = process.argv.slice(1);
const path = createRequire(`${packages}/`).resolve(name);
const ort = await import(pathToFileURL(path)).then((found) => found.default ?? found);
const refused = [];
for (const file of files) {
  try {
    await ort.InferenceSession.create(new Uint8Array(readFileSync(file)), { executionProviders: [provider] });
  } catch { refused.push(file); }
}
console.log(JSON.stringify(refused));
"""
IMPORTS = (
    'import { readFileSync } from "node:fs"; import { createRequire } from "node:module"; '
    'import { pathToFileURL } from "node:url";'
)


def set_versions(ir=None, opset=None):
    def change(model):
        model.ir_version = ir or model.ir_version
        model.opset_import[0].version = opset or model.opset_import[0].version

    return lambda edit: edit.graph(change)


@pytest.fixture
def beyond(tmp_path):
    """A function that writes graphs at the limits of a release, and beyond them: files by (IR version, opset)."""

    def write(release):
        at, above = (release.max_ir, release.max_opset), (release.max_ir + 1, release.max_opset + 1)
        files = {}
        for ir, opset in (at, (above[0], at[1]), (at[0], above[1])):
            values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
            graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", values[:1], values[1:])
            opsets = [helper.make_opsetid("", opset)]
            files[ir, opset] = tmp_path / f"{ir}_{opset}.onnx"
            model = helper.make_model(graph, opset_imports=opsets, ir_version=ir)
            files[ir, opset].write_bytes(model.SerializeToString())
        return files

    return write


def is_of(release, version):
    return release.name.split()[1].split(".")[:2] == version.split(".")[:2]


@pytest.mark.parametrize("release", [CPU, GPU], ids=lambda release: release.name)
def test_the_limits_are_those_of_the_release(release, beyond):
    """The package for GPUs is of the source of the one for CPUs of its version, which may stand in for it."""
    if not is_of(release, ort.__version__):
        pytest.skip(f"onnxruntime {ort.__version__} is installed")
    at, *above = beyond(release).values()
    ort.InferenceSession(at, providers=["CPUExecutionProvider"])
    for file in above:
        with pytest.raises(Exception, match="(?i)unsupported model IR version|opset"):
            ort.InferenceSession(file, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("release", "provider"), [(NODE, "cpu"), (WEB, "wasm")], ids=["node", "web"])
def test_the_limits_are_those_in_node(release, provider, beyond, places):
    require(NodeClient(), places)
    name, version = release.name.split()
    found = json.loads((places.node_modules / name / "package.json").read_text())["version"]
    if not is_of(release, found):
        pytest.skip(f"{name} {found} is installed, not {version}")
    _, *above = files = beyond(release).values()
    command = ["node", "--input-type=module", "-e", IMPORTS + OPEN, str(places.node_modules), name, provider]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1]) == list(map(str, above))


def test_the_kernels_of_cuda_are_of_the_same_release():
    assert GPU.name == f"onnxruntime-gpu {kernel_table('cuda').onnxruntime}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_versions(ir=14), "onnx/model.onnx has ONNX IR version 14, and {} reads up to 13"),
        (set_versions(opset=27), "onnx/model.onnx has opset 27, and {} knows up to 26"),
    ],
    ids=["IR", "opset"],
)
def test_a_version_is_judged_for_each_client_and_provider(change, words, talker, spoil):
    folder = spoil(talker, change)
    report = check(folder, "cuda")
    assert report.keeps_contract, report.contract
    failing = {name for name in report.clients if report.verdict(name) == "does not load"}
    assert failing == set(JS)
    said = {name: " ".join(map(str, report.clients[name])) for name in JS}
    assert words.format("onnxruntime-node 1.30.0") in said[JS[0]]
    assert words.format("onnxruntime-web 1.31.0-dev") in said[JS[1]]
    assert report.audit.verdict == "does not load"
    assert any(words.format("onnxruntime-gpu 1.31.1") in str(each) for each in report.audit.findings)
    if is_of(CPU, ort.__version__):
        ort.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])


def test_webgpu_as_a_plugin_reads_what_the_cpu_reads(talker, spoil):
    report = check(spoil(talker, set_versions(ir=14)), "webgpu")
    assert not [each for each in report.audit.findings if "IR version" in str(each)]
    assert onnx.load(report.folder / "onnx" / "model.onnx", load_external_data=False).ir_version == 14
