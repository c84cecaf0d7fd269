"""Targets: what each proposes, what it writes and nothing else, and that the same model comes out of every one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeformer.checkpoints.found_model import find_model
from edgeformer.checkpoints.source import open_source
from edgeformer.client_files.transformers_js import with_transformers_js_config
from edgeformer.errors import BundleError, ExportError, RequestError
from edgeformer.export import ExportOptions, export_model
from edgeformer.export.bundle.ort_format import LARGEST, convert_to_ort, load_onnx
from edgeformer.export.parity import open_subject, verify
from edgeformer.export.parity.locate.locator import locate
from edgeformer.export.plan import make_plan
from edgeformer.manifest.deployment import DEPLOYMENTS, LARGEST_ARRAY
from edgeformer.manifest.deployment import OPERATORS_FILE as OPERATORS
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import FileEntry, sha256
from edgeformer.manifest.quantization import QuantizationOverrides, WeightFormat, make_quantization
from edgeformer.runtime import load
from edgeformer.runtime.measure.prepack import optimize

TARGETS = ("server", "desktop", "web", "mobile")
MODELS = ("tiny-llama", "tiny-embed", "tiny-translate")
PROMPT = np.random.default_rng(3).integers(3, 130, 11).tolist()
TOKENIZER = ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
ALWAYS = ["README.md", *TOKENIZER]


# What is proposed


@pytest.fixture(scope="module")
def configs():
    return {name: open_source(name).config for name in MODELS}


PER_TOKEN = make_quantization("int8", QuantizationOverrides(activations="per_token"))
EVERYWHERE = make_quantization("int8", QuantizationOverrides(activations="per_token"), everywhere=True)
HEAD_OF_8 = make_quantization("int4", QuantizationOverrides(head="int8"))
HEAD_OF_6 = make_quantization("int4", QuantizationOverrides(head="int6"))


@pytest.mark.parametrize(
    ("target", "decoder", "encoder"),
    [
        ("server", ("int8", make_quantization("int8")), ("int8", PER_TOKEN)),
        ("desktop", ("int4", HEAD_OF_6), ("int8", PER_TOKEN)),
        ("web", ("int8", EVERYWHERE), ("int8", EVERYWHERE)),
        ("mobile", ("int4", HEAD_OF_8), ("int8", make_quantization("int8"))),
        (None, ("fp32", None), ("fp32", None)),
    ],
)
def test_a_target_proposes_by_the_kind_of_model(target, decoder, encoder, configs):
    for name, expected in zip(MODELS, (decoder, encoder, encoder), strict=True):
        chosen = make_plan(ExportOptions(deployment=target), configs[name])
        assert (chosen.precision, chosen.quantization) == expected
    module = make_plan(ExportOptions(deployment=target), None)
    assert module.precision == decoder[0], "a module that is not ours is a decoder"


def test_per_token_is_chosen_only_where_nothing_else_runs():
    for name in ("embedding.weight", "head.weight", "decoder.blocks.0.feed_forward.up.weight"):
        assert PER_TOKEN.format_of(name).block == 128
        assert EVERYWHERE.format_of(name).block is None
    assert EVERYWHERE.format_of("blocks.0.position_embedding.weight") is None


@pytest.mark.parametrize(
    ("target", "asked", "expected"),
    [
        ("web", {"precision": "int4"}, ("int4", make_quantization("int4"))),
        ("web", {"quantization": QuantizationOverrides(head="fp32")}, ("int8", replace(EVERYWHERE, rules=()))),
        (
            "web",
            {"quantization": QuantizationOverrides(block=64)},
            ("int8", make_quantization("int8", QuantizationOverrides(block=64))),
        ),
        ("server", {"precision": "fp32"}, ("fp32", None)),
        ("server", {"ops": "standard"}, ("fp32", None)),
        ("server", {"provider": "cuda"}, ("fp16", None)),
        ("web", {"provider": "webgpu"}, ("int4", HEAD_OF_8)),
        ("desktop", {"provider": "webgpu"}, ("int4", HEAD_OF_8)),
        ("desktop", {"precision": "int8"}, ("int8", make_quantization("int8"))),
        (
            "desktop",
            {"quantization": QuantizationOverrides(head="int4")},
            ("int4", make_quantization("int4", QuantizationOverrides(head="int4"))),
        ),
        (
            "desktop",
            {"quantization": make_quantization("int4", QuantizationOverrides(block=64))},
            ("int4", make_quantization("int4", QuantizationOverrides(block=64))),
        ),
        (
            "desktop",
            {"calibration": [[1]]},
            ("int4", make_quantization("int4", QuantizationOverrides(head="int6"), calibrated=True)),
        ),
        (
            "desktop",
            {"quantization": QuantizationOverrides(symmetric=False)},  # integers of 6 bits have no zero points
            ("int4", make_quantization("int4", QuantizationOverrides(symmetric=False, head="int8"))),
        ),
        (None, {"precision": "int4"}, ("int4", make_quantization("int4"))),
    ],
)
def test_what_is_asked_for_goes_before_it(target, asked, expected, configs):
    chosen = make_plan(ExportOptions(deployment=target, **asked), configs["tiny-llama"])
    if asked == {"quantization": QuantizationOverrides(head="fp32")}:
        assert chosen.quantization.format_of("head.weight") is None
        assert chosen.quantization.format_of("blocks.0.feed_forward.up.weight").block is None
        return
    assert (chosen.precision, chosen.quantization) == expected


def test_webgpu_of_a_browser_has_kernels_for_blocks(configs):
    """Encoders get int8 in blocks; transformers.js has no graphs of an encoder-decoder, which it is told."""
    options = ExportOptions(deployment="web", provider="webgpu")
    chosen = make_plan(options, configs["tiny-embed"])
    assert (chosen.precision, chosen.quantization) == ("int8", make_quantization("int8"))
    assert chosen.place.block_kernels and not chosen.place.primitive_gathers
    wasm = make_plan(ExportOptions(deployment="web"), configs["tiny-embed"])
    assert not wasm.place.block_kernels and wasm.place.primitive_gathers
    with pytest.raises(ExportError, match="^the deployment web is for transformers.js, .* none is written for WebGPU"):
        make_plan(options, configs["tiny-translate"])
    assert make_plan(replace(options, deployment=None), configs["tiny-translate"]).provider == "webgpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"deployment": "web", "provider": "cuda"},
            "the deployment web has no CUDA. Leave provider cuda out, or the deployment.",
        ),
        (
            {"deployment": "mobile", "precision": "fp16"},
            "fp16 weights are widened to float32 when a graph is loaded. Files in ORT",
        ),
        ({"deployment": "cloud"}, "deployment is 'cloud'; it must be one of server, desktop, web, mobile, or None."),
    ],
)
def test_what_a_target_cannot_have_is_said(options, message, tmp_path):
    with pytest.raises(ExportError) as error:
        export_model("tiny-llama", tmp_path / "bundle", **options)
    assert str(error.value).startswith(message)
    assert not list(tmp_path.iterdir())


# What is written


def with_tokenizer(folder):
    """Beside a checkpoint, a tokenizer: that of a preset, in all files that it may have."""
    preset = find_model("tiny-llama").folder
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(preset / name, folder / name)
    (folder / "special_tokens_map.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def checkpoint(make_llama):
    return with_tokenizer(make_llama(3, num_hidden_layers=2, tie_word_embeddings=True))


@pytest.fixture(scope="module")
def bundles(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    return {target: export_model(checkpoint, folder / target, deployment=target, verify=None) for target in TARGETS}


WRITTEN = {
    "server": [
        "config.json", "genai_config.json", "special_tokens_map.json", "onnx/model.onnx", "onnx/model.onnx_data",
    ],
    "web": ["config.json", "onnx/model.onnx", "onnx/model.onnx_data"],
    "mobile": ["genai_config.json", "onnx/model.ort", OPERATORS],
}  # fmt: skip
WRITTEN["desktop"] = WRITTEN["server"]


def files_of(bundle):
    return sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_gets_what_it_reads_and_nothing_else(target, bundles):
    path, manifest = bundles[target].path, Manifest.read(bundles[target].path)
    assert files_of(path) == sorted([*ALWAYS, *WRITTEN[target], "edgeformer.json"])
    assert manifest.files.keys() == {*ALWAYS, *WRITTEN[target]}
    assert manifest.plan.deployment == target


@pytest.mark.parametrize("target", TARGETS)
def test_every_bundle_verifies_and_runs(target, bundles, checkpoint):
    report = verify(bundles[target].path, checkpoint, mode="quick")
    assert report.passed, report.describe()
    assert len(load(bundles[target].path).generate(PROMPT, max_new_tokens=4).token_ids) == 4


@pytest.fixture(scope="module")
def translator(make_model):
    sizes = {"vocab_size": 131, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    ends = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    return with_tokenizer(make_model("t5", 5, auto="AutoModelForSeq2SeqLM", **sizes, **ends))


def test_browser_graphs_of_a_translator_have_own_weights(translator, tmp_path):
    result = export_model(translator, tmp_path / "web", deployment="web")
    names = ["decoder_model.onnx"]
    for name in ("encoder_model.onnx", "decoder_model_merged.onnx"):
        names += [name, f"{name}_data"]
    assert result.manifest.files.keys() == {*ALWAYS[:-1], "chat_template.jinja", "config.json"} | {
        f"onnx/{name}" for name in names
    }
    config = json.loads((result.path / "config.json").read_text())["transformers.js_config"]
    assert config["use_external_data_format"] == {"encoder_model.onnx": 1, "decoder_model_merged.onnx": 1}
    for name in ("encoder_model", "decoder_model_merged"):
        (location,) = locations(result.path / "onnx" / f"{name}.onnx")
        assert location == f"{name}.onnx_data"
    assert locations(result.path / "onnx" / "decoder_model.onnx") == {"decoder_model_merged.onnx_data"}


def test_an_encoder_for_phones(tmp_path):
    result = export_model("tiny-embed", tmp_path / "mobile", deployment="mobile")
    assert result.report.passed and result.manifest.parity["hashes"], "a summary stays, without its pictures"
    names = {"README.md", "tokenizer.json", "tokenizer_config.json", "onnx/model.ort", OPERATORS}
    assert result.manifest.files.keys() == names


def locations(graph):
    """The files in which a graph has its weights."""
    model = onnx.load(graph, load_external_data=False)
    return {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }


# Pieces of weights


def export_in_pieces(checkpoint, place, largest):
    """Export for a browser that loads files of so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DEPLOYMENTS, "web", replace(DEPLOYMENTS["web"], largest_data=largest))
        return export_model(checkpoint, place, deployment="web", verify=None)


@pytest.fixture(scope="module")
def in_pieces(checkpoint, tmp_path_factory):
    return export_in_pieces(checkpoint, tmp_path_factory.mktemp("pieces") / "bundle", 20_000)


def test_weights_are_cut_into_files_that_a_browser_can_load(in_pieces, bundles, checkpoint):
    result = in_pieces
    pieces = {name: entry.bytes for name, entry in result.manifest.files.items() if "_data" in name}
    assert len(pieces) > 3
    assert list(pieces) == ["onnx/model.onnx_data", *(f"onnx/model.onnx_data_{n}" for n in range(1, len(pieces)))]
    assert max(pieces.values()) <= 20_000
    config = json.loads((result.path / "config.json").read_text())["transformers.js_config"]
    assert config["use_external_data_format"] == {"model.onnx": len(pieces)}
    assert locations(result.path / "onnx" / "model.onnx") == {Path(name).name for name in pieces}
    whole = load(bundles["web"].path).generate(PROMPT, max_new_tokens=24).token_ids
    assert load(result.path).generate(PROMPT, max_new_tokens=24).token_ids == whole
    assert verify(result.path, checkpoint, mode="quick").passed


def test_a_tensor_is_not_cut(checkpoint, tmp_path):
    with pytest.raises(ExportError, match=r"takes 0\.00 GB, and a file for browsers may have 0\.00 GB, and a tensor"):
        export_in_pieces(checkpoint, tmp_path / "bundle", 2_000)
    assert not list(tmp_path.iterdir())


def test_a_damaged_piece_is_found(in_pieces, tmp_path):
    path = shutil.copytree(in_pieces.path, tmp_path / "bundle")
    piece = path / "onnx" / "model.onnx_data_1"
    piece.write_bytes(piece.read_bytes()[::-1])
    with pytest.raises(BundleError, match="model.onnx_data_1 was changed after the export"):
        verify(path)


def test_real_files_stay_below_what_chrome_takes():
    assert DEPLOYMENTS["web"].largest_data == LARGEST_ARRAY < 2**31 - 1
    assert [name for name, each in DEPLOYMENTS.items() if each.largest_data is not None] == ["web"]


def test_transformers_js_is_told_the_device(bundles):
    """Only bundles for browsers alone name the GPU: others run in Node, too, which may have none."""
    manifest = bundles["web"].manifest
    for provider, deployment, told in (
        ("webgpu", "web", {"device": "webgpu"}),
        ("cpu", "web", {}),
        ("webgpu", None, {}),
    ):
        plan = replace(manifest.plan, provider=provider, deployment=deployment)
        config = with_transformers_js_config({}, replace(manifest, plan=plan))
        section = config["transformers.js_config"]
        assert {name: section[name] for name in section if name == "device"} == told


def test_pieces_are_counted_by_whole_names(bundles):
    manifest = bundles["web"].manifest
    extra = dict.fromkeys(("onnx/model.onnx_data_1", "onnx/model.onnx_database"), manifest.files["README.md"])
    config = with_transformers_js_config({}, replace(manifest, files=manifest.files | extra))
    assert config["transformers.js_config"]["use_external_data_format"] == {"model.onnx": 2}


# Lookups without a kernel for them


@pytest.mark.parametrize(
    "form",
    [
        WeightFormat(bits=4, block=16),
        WeightFormat(bits=4, block=16, symmetric=False),
        WeightFormat(bits=8, block=32, symmetric=False),
        WeightFormat(bits=8, block=None),
    ],
    ids=str,
)
def test_a_plain_lookup_finds_what_the_integers_mean(form, make_llama, tmp_path):
    checkpoint = make_llama(3, num_hidden_layers=1, hidden_size=48, num_attention_heads=3, num_key_value_heads=3)
    chosen = make_quantization(f"int{form.bits}", QuantizationOverrides(block=form.block, symmetric=form.symmetric))
    if form.block is None:
        chosen = EVERYWHERE
    result = export_model(checkpoint, tmp_path / "bundle", deployment="web", quantization=chosen, verify=None)
    model = onnx.load(result.path / "onnx" / "model.onnx")
    assert "GatherBlockQuantized" not in {node.op_type for node in model.graph.node}
    subject = open_subject(result.path)
    table = subject.weights["embedding.weight"].numpy()
    found = first_states(model)
    ids = np.array([[0, 7, 130], [7, 7, 1]])
    np.testing.assert_allclose(found(ids), table[ids], rtol=1e-6, atol=1e-7)
    assert np.abs(found(ids) - table[np.where(ids < 130, ids + 1, 0)]).max() > 0.1, "a token too far would show"


def first_states(model):
    """What a graph looks up for token ids."""
    norm = next(node for node in model.graph.node if node.op_type == "SimplifiedLayerNormalization")
    state = helper.make_tensor_value_info(norm.input[0], TensorProto.FLOAT, None)
    del model.graph.output[:]
    model.graph.output.append(state)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    caches = [value.name for value in session.get_inputs()[2:]]

    def found(ids):
        empty = np.zeros((len(ids), 3, 0, 16), np.float32)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return session.run(None, feeds | dict.fromkeys(caches, empty))[0]

    return found


def test_head_and_lookup_read_one_tensor(bundles):
    for target in ("web", "mobile"):
        graph = load_onnx(bundles[target].path / bundles[target].manifest.graph).graph
        integers = [tensor.name for tensor in graph.initializer if tensor.name.startswith("embedding.weight.")]
        assert [name for name in integers if "integers" in name] == [next(name for name in integers if "int" in name)]


# Files in ORT format


@pytest.fixture(scope="module")
def as_onnx(checkpoint, tmp_path_factory):
    """What the mobile bundle was before it was converted, but for its lookups."""
    path = tmp_path_factory.mktemp("onnx") / "bundle"
    return export_model(checkpoint, path, precision="int4", quantization=HEAD_OF_8, verify=None).path


def greedy(graph, steps):
    """Tokens of plain onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(graph), options)
    caches = {value.name: np.zeros((1, 2, 0, 16), np.float32) for value in session.get_inputs()[2:]}
    tokens, fed = list(PROMPT), list(PROMPT)
    for _ in range(steps):
        feeds = {"input_ids": np.array([fed]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        logits, *presents = session.run(None, feeds | caches)
        caches = dict(zip(caches, presents, strict=True))
        fed = [int(logits[0, -1].argmax())]
        tokens += fed
    return tokens[len(PROMPT) :]


def test_the_converted_graph_says_the_same(bundles, as_onnx, make_llama, tmp_path):
    mobile = bundles["mobile"].path
    expected = greedy(as_onnx / "onnx" / "model.onnx", 40)
    assert greedy(mobile / "onnx" / "model.ort", 40) == expected
    ours = load(mobile).generate(PROMPT, max_new_tokens=40).token_ids
    assert ours == load(as_onnx).generate(PROMPT, max_new_tokens=40).token_ids == expected[: len(ours)]
    other = export_model(make_llama(4, num_hidden_layers=2), tmp_path / "other", deployment="mobile", verify=None).path
    assert greedy(other / "onnx" / "model.ort", 40) != expected


def test_a_converted_graph_is_read_back_as_it_was_made(bundles, as_onnx):
    back = load_onnx(bundles["mobile"].path / "onnx" / "model.ort").graph
    made = onnx.load(as_onnx / "onnx" / "model.onnx").graph
    read = {tensor.name: numpy_helper.to_array(tensor) for tensor in back.initializer}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.initializer if "weight" in tensor.name}
    weights.pop("embedding.weight.integers.flat")
    for name, value in weights.items():
        np.testing.assert_array_equal(read[name], value)


def test_a_fault_in_a_converted_graph_is_found(bundles, checkpoint, tmp_path):
    """Weights of another layer: halves of two tensors exchanged within the file."""
    bundle = shutil.copytree(bundles["mobile"].path, tmp_path / "bundle")
    path = bundle / "onnx" / "model.ort"
    weights = {t.name: numpy_helper.to_array(t).tobytes() for t in load_onnx(path).graph.initializer}
    down = "blocks.{}.feed_forward.down.weight.integers"
    data, (first, second) = path.read_bytes(), (weights[down.format(layer)] for layer in (0, 1))
    assert data.count(first) == data.count(second) == 1
    data = data.replace(first, b"%" * len(first)).replace(second, first).replace(b"%" * len(first), second)
    path.write_bytes(data)
    manifest = Manifest.read(bundle)
    replace(manifest, files=manifest.files | {"onnx/model.ort": entry_of(path)}).write(bundle)
    report = verify(bundle, checkpoint, mode="quick")
    assert not report.passed
    assert "weights: block error" in {check.name for check in report.checks if not check.passed}


def entry_of(path):
    return FileEntry(bytes=path.stat().st_size, sha256=sha256(path))


def test_the_list_of_kernels_is_that_of_the_graph(bundles):
    path = bundles["mobile"].path
    lines = (path / OPERATORS).read_text().splitlines()
    assert lines[:2] == ["# Generated from model/s:", "# - onnx/model.ort"]
    graph = load_onnx(path / "onnx" / "model.ort").graph
    for node in graph.node:
        domain = node.domain or "ai.onnx"
        assert any(line.startswith(f"{domain};") and node.op_type in line for line in lines[2:]), node.op_type
    assert {line.split(";")[0] for line in lines[2:]} == {"ai.onnx", "com.microsoft"}, "no layout of one processor"
    assert any('Gather{"inputs": {"0": ["float", "uint8_t"]' in line for line in lines)


def test_a_graph_that_is_too_large_for_the_format_is_refused(as_onnx, tmp_path):
    bundle = shutil.copytree(as_onnx, tmp_path / "bundle")
    size = sum((bundle / "onnx" / name).stat().st_size for name in ("model.onnx", "model.onnx_data"))
    with pytest.raises(ExportError, match=r"onnx/model\.onnx takes .* GB with its weights, and a file in ORT format"):
        convert_to_ort(bundle, ["onnx/model.onnx"], largest=size // 2)
    assert (bundle / "onnx" / "model.onnx_data").is_file()
    convert_to_ort(bundle, ["onnx/model.onnx"], largest=2 * size)
    assert files_of(bundle / "onnx") == ["model.ort"]
    assert LARGEST == 2_147_483_647


def test_what_wants_onnx_files_says_so(bundles):
    with pytest.raises(RequestError, match="which load no prepacked graphs"):
        optimize(bundles["mobile"].path)
    subject = open_subject(bundles["mobile"].path)
    in_float32 = replace(subject.manifest, plan=replace(subject.manifest.plan, precision="fp32", quantization=None))
    with pytest.raises(
        BundleError, match="onnxruntime has fused the nodes of onnx/model.ort. Export the model without"
    ):
        locate(subject.folder, in_float32, subject.model_spec, subject.weights)


# The card


@pytest.mark.parametrize(
    ("target", "says", "says_not"),
    [
        ("web", ["@huggingface/transformers"], ["onnxruntime_genai", "On a phone"]),
        ("mobile", ["onnxruntime_genai", f"--include_ops_by_config {OPERATORS}", "model.ort"], ["huggingface", "C#"]),
        ("desktop", ["@huggingface/transformers", "onnxruntime_genai"], ["On a phone"]),
    ],
)
def test_a_card_shows_what_can_be_done_there(target, says, says_not, bundles):
    card = (bundles[target].path / "README.md").read_text()
    assert all(part in card for part in says)
    assert not any(part in card for part in says_not)
