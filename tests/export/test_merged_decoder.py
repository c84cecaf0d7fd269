"""The decoder of transformers.js and Optimum: its contract, the weights that it shares, and that its proof can fail."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeformer.client_files.transformers_js import with_transformers_js_config
from edgeformer.contract.tensors import merged_input_names, merged_output_names
from edgeformer.errors import BundleError
from edgeformer.export import export_model, verify
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.float_products import replace_integer_products
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.manifest.graph_forms import DECODER_GRAPH, ENCODER_GRAPH, MERGED_GRAPH
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.runtime.sessions.prepacked.prepacked_graphs import opened_graphs

TOKENS = {"vocab_size": 97, "decoder_start_token_id": 0, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
BART = TOKENS | {
    "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
FAMILIES = {
    "t5": TOKENS | {
        "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
    },
    "marian": BART | {
        "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61, "max_position_embeddings": 40,
    },
    "whisper": BART | {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 40},
}  # fmt: skip
HEADS = {"t5": (4, 16), "marian": (3, 16), "whisper": (3, 16)}


@pytest.fixture(scope="module")
def checkpoints(make_model):
    autos = {"whisper": "AutoModelForSpeechSeq2Seq"}
    return {
        family: make_model(family, 1, auto=autos.get(family, "AutoModelForSeq2SeqLM"), **sizes)
        for family, sizes in FAMILIES.items()
    }


@pytest.fixture(scope="module")
def export(checkpoints, tmp_path_factory):
    """Return a function that exports a family, verified."""

    def make(family, **options):
        place = tmp_path_factory.mktemp(family) / family
        return export_model(checkpoints[family], place, context_length=40, **options)

    return make


@pytest.fixture(scope="module")
def bundles(export):
    return {family: export(family) for family in FAMILIES}


def merged_checks(report):
    return [check for check in report.checks if "merged" in check.name]


# What it is


def test_two_exports_write_the_same_bytes(bundles, export):
    bundle, again = bundles["marian"], export("marian", verify=None)
    for name, entry in again.manifest.files.items():
        if name.startswith("onnx/"):
            assert entry.sha256 == bundle.manifest.files[name].sha256, name


@pytest.mark.parametrize("family", FAMILIES)
def test_it_has_the_tensors_that_clients_feed_in_their_order(family, bundles):
    bundle = bundles[family]
    config = bundle.manifest.model.decoder
    session = ort.InferenceSession(bundle.path / MERGED_GRAPH)
    inputs = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    outputs = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    caches = config.cache_geometry, config.cross_geometry
    assert list(inputs) == merged_input_names(*caches, masked=family != "whisper")
    assert list(outputs) == merged_output_names(*caches)
    if family != "whisper":
        assert list(inputs)[:7] == [
            "encoder_attention_mask", "input_ids", "encoder_hidden_states", "past_key_values.0.decoder.key",
            "past_key_values.0.decoder.value", "past_key_values.0.encoder.key", "past_key_values.0.encoder.value",
        ]  # fmt: skip
    heads, head_dim = HEADS[family]
    width = FAMILIES[family]["d_model"]
    lengths = {"decoder": "past_sequence_length", "encoder": "past_source_length"}
    for name in (name for name in inputs if name.startswith("past")):
        length = lengths[name.split(".")[2]]
        assert inputs[name] == ("tensor(float)", ["batch_size", heads, length, head_dim])
    source = 12 if family == "whisper" else "source_length"  # recordings have one length
    assert inputs["encoder_hidden_states"] == ("tensor(float)", ["batch_size", source, width])
    assert inputs["use_cache_branch"] == ("tensor(bool)", [1])
    assert outputs["present.1.encoder.value"][1] == ["batch_size", heads, "source_length", head_dim]


def places(path):
    """Where the weights of a graph lie: file, offset and length by name."""
    stored = onnx.load(path, load_external_data=False).graph.initializer
    return {
        each.name: {entry.key: entry.value for entry in each.external_data} for each in stored if each.external_data
    }


def test_all_its_weights_are_those_of_the_other_graphs(bundles):
    folder = bundles["marian"].path
    encoder, decoder, merged = (places(folder / graph) for graph in (ENCODER_GRAPH, DECODER_GRAPH, MERGED_GRAPH))
    assert merged.items() <= (encoder | decoder).items()
    of_source = merged.keys() - decoder.keys()
    assert of_source == {
        f"decoder.blocks.{layer}.cross_attention.{part}.{kind}"
        for layer in (0, 1)
        for part in ("key", "value")
        for kind in ("weight", "bias")
    }


def test_the_manifest_lists_it_and_our_runtime_does_not_open_it(bundles, tmp_path):
    manifest = bundles["t5"].manifest
    assert manifest.graphs["merged"].file == MERGED_GRAPH
    assert manifest.graph_files == (ENCODER_GRAPH, DECODER_GRAPH, MERGED_GRAPH)
    assert opened_graphs(manifest) == [ENCODER_GRAPH, DECODER_GRAPH]
    assert MERGED_GRAPH in manifest.parity["hashes"]
    copy = shutil.copytree(bundles["t5"].path, tmp_path / "copy")
    assert manifest.certifies(copy)
    (copy / MERGED_GRAPH).write_bytes((copy / DECODER_GRAPH).read_bytes())
    assert not manifest.certifies(copy)
    with pytest.raises(BundleError, match=r"decoder_model_merged\.onnx has .* bytes instead of"):
        verify(copy)


def test_transformers_js_looks_for_no_suffix(bundles):
    config = json.loads((bundles["t5"].path / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "fp32", "use_external_data_format": {}}


@pytest.mark.parametrize("options", [{"ops": "standard"}, {"precision": "fp16", "provider": "cuda"}])
def test_other_targets_have_none(options, export):
    bundle = export("t5", verify=None, **options)
    assert "merged" not in bundle.manifest.graphs
    assert not (bundle.path / MERGED_GRAPH).exists()
    config = {"model_type": "t5"}
    assert with_transformers_js_config(config, bundle.manifest) is config


# What it computes


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_held_to_the_limits_of_the_decoder_graph(family, bundles):
    checks = merged_checks(bundles[family].report)
    runs = {check.name.partition(":")[0] for check in checks}
    sources = {"merged prefill, source", "merged steps, source"}
    assert runs == {"merged prefill", "merged steps", "merged batch of 3", *sources}
    assert {check.limit for check in checks if check.name.endswith("max ratio")} == {
        check.limit for check in bundles[family].report.checks if check.name == "prefill: max ratio"
    }


@pytest.mark.parametrize("precision", ["bf16", "int4"])
def test_it_is_right_whatever_weights_are_stored_as(precision, export):
    bundle = export("t5", precision=precision)
    assert merged_checks(bundle.report)
    stored = {graph: places(bundle.path / graph) for graph in (ENCODER_GRAPH, DECODER_GRAPH, MERGED_GRAPH)}
    assert stored[MERGED_GRAPH].items() <= (stored[ENCODER_GRAPH] | stored[DECODER_GRAPH]).items()


def test_integer_products_in_a_branch_are_unrounded_too(export):
    bundle = export(
        "t5", precision="int8", quantization=make_quantization("int8", QuantizationOverrides(activations="per_token"))
    )
    names = [check.name for check in merged_checks(bundle.report)]
    assert {name.startswith("int8 activations, ") for name in names} == {True, False}
    model = inline_functions(onnx.load(bundle.path / MERGED_GRAPH, load_external_data=False))
    assert replace_integer_products(model.graph) == 4, "keys and values of two layers"
    assert "MatMulIntegerToFloat" not in {node.op_type for node in branch(model, "else_branch").node}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_past_that_is_a_placeholder_does_not_count(family, bundles):
    """Optimum passes a past of length 1 with use_cache_branch = False, transformers.js one of length 0."""
    bundle, draw = bundles[family], np.random.default_rng(0)
    session = ort.InferenceSession(bundle.path / MERGED_GRAPH)
    heads, head_dim = HEADS[family]
    source = 12 if family == "whisper" else 5
    names = [value.name for value in session.get_inputs()]

    def run(ids, length, cached=False, past=None):
        feeds = {"input_ids": np.array(ids), "use_cache_branch": np.array([cached])}
        feeds["encoder_hidden_states"] = states
        if "encoder_attention_mask" in names:
            feeds["encoder_attention_mask"] = np.ones((2, source), np.int64)
        rubbish = np.full((2, heads, length, head_dim), np.nan, np.float32)
        feeds |= past or {name: rubbish for name in names if name.startswith("past")}
        return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))

    states = draw.standard_normal((2, source, FAMILIES[family]["d_model"])).astype(np.float32)
    for ids in ([[3], [4]], [[3, 7, 9], [4, 8, 10]]):
        expected, found = run(ids, 0), run(ids, 1)
        assert not np.isnan(expected["logits"]).any()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, name)
        past = {name.replace("present", "past_key_values"): value for name, value in found.items() if name != "logits"}
        after = run([[5], [6]], 0, cached=True, past=past)["logits"]
        whole = run([[*ids[0], 5], [*ids[1], 6]], 0)["logits"]
        np.testing.assert_allclose(after[:, -1], whole[:, -1], atol=1e-5)


# Its proof can fail


def branch(model, name):
    (choice,) = (node for node in model.graph.node if node.op_type == "If")
    return next(attribute.g for attribute in choice.attribute if attribute.name == name)


def swapped_branches(model, folder):
    (choice,) = (node for node in model.graph.node if node.op_type == "If")
    first, second = choice.attribute
    first.name, second.name = second.name, first.name


def always_projected(model, folder):
    branch(model, "then_branch").CopyFrom(branch(model, "else_branch"))


def one_element(model, folder):
    """One weight of one projection, written into the graph."""
    name = "decoder.blocks.1.cross_attention.value.weight"
    stored = next(each for each in model.graph.initializer if each.name == name)
    place = {entry.key: entry.value for entry in stored.external_data}
    data = (folder / "onnx" / place["location"]).read_bytes()[int(place["offset"]) :][: int(place["length"])]
    values = np.frombuffer(data, np.float32).reshape(tuple(stored.dims)).copy()
    values[3, 5] += np.abs(values).max()
    stored.CopyFrom(numpy_helper.from_array(values, name))


def another_layers_keys(model, folder):
    outputs = branch(model, "else_branch").output
    outputs[0].name, outputs[2].name = outputs[2].name, outputs[0].name


def another_layers_past(model, folder):
    nodes = branch(model, "then_branch").node
    nodes[1].input[0], nodes[3].input[0] = nodes[3].input[0], nodes[1].input[0]


def padding_is_read(model, folder):
    """The mask of the source is all ones, as for one that has no padding."""
    readers = [node for node in model.graph.node if "encoder_attention_mask" in node.input]
    shape = helper.make_node("Shape", ["encoder_attention_mask"], ["wrong/shape"])
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    ones = helper.make_node("ConstantOfShape", ["wrong/shape"], ["wrong/ones"], value=one)
    for node in readers:
        node.input[:] = ["wrong/ones" if name == "encoder_attention_mask" else name for name in node.input]
    nodes = [shape, ones, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def a_token_too_many(model, folder):
    """The mask of what is written has one token more than there are."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1]), "wrong/more"))
    add = next(node for node in model.graph.node if node.name.startswith("masks/Add"))
    made = f"{add.output[0]}/wrong"
    index = list(model.graph.node).index(add)
    model.graph.node.insert(index + 1, helper.make_node("Add", [made, "wrong/more"], [add.output[0]]))
    add.output[0] = made


FAULTS = {
    swapped_branches: "run",
    always_projected: "merged steps",
    one_element: "merged prefill",
    another_layers_keys: "merged prefill",
    another_layers_past: "merged steps",
    padding_is_read: "merged batch of 3",
    a_token_too_many: "run",
}
"""What is done to the graph, and the first run that shows it."""


@pytest.fixture(scope="module")
def subject(bundles, tmp_path_factory):
    folder = shutil.copytree(bundles["t5"].path, tmp_path_factory.mktemp("faulty") / "t5")
    opened = open_subject(folder)
    return SimpleNamespace(
        folder=folder,
        right=onnx.load(folder / MERGED_GRAPH, load_external_data=False),
        verify=lambda: verify_graph(folder, opened.manifest, opened.model_spec, opened.weights),
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_graph_fails(fault, subject):
    wrong = onnx.ModelProto()
    wrong.CopyFrom(subject.right)
    fault(wrong, subject.folder)
    onnx.save(wrong, subject.folder / MERGED_GRAPH)
    report = subject.verify()
    failed = [check.name for check in report.failures()]
    assert failed and all("merged" in name or name == "run" for name in failed), failed
    assert failed[0].startswith(FAULTS[fault]), failed


def test_the_same_copy_is_right_without_a_fault(subject):
    onnx.save(subject.right, subject.folder / MERGED_GRAPH)
    assert subject.verify().passed
