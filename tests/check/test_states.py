"""Any mix of what layers keep: each client writes our tokens or is said not to load the bundle, and does not."""

import json
import shutil

import numpy as np
import onnxruntime as ort
import pytest
from edits import Edit
from run_clients import PROMPT, STEPS, in_genai, in_node, in_onnxruntime, require
from state_graphs import state_bundle
from verification.client_programs.programs import NodeClient

from edgeformer.check import check
from edgeformer.client_files.genai import genai_config, genai_obstacle
from edgeformer.client_files.transformers_js import with_transformers_js_config
from edgeformer.contract.tensors import CacheGeometry, ConvState, KeyValueState, RecurrentState
from edgeformer.manifest.manifest import Manifest

GENAI, NODE = "onnxruntime-genai", "transformers.js-node"

KEYS = KeyValueState(num_kv_heads=2, head_dim=4)
WIDE, ONE_HEAD = KeyValueState(num_kv_heads=2, head_dim=6), KeyValueState(num_kv_heads=1, head_dim=4)
CONV, SHORT_CONV = ConvState(channels=5, width=3), ConvState(channels=6, width=2)
DELTA = RecurrentState(num_heads=2, key_dim=3, value_dim=4)
DELTA_TURNED = RecurrentState(num_heads=2, key_dim=4, value_dim=3)
SSM = RecurrentState(name="ssm", num_heads=2, key_dim=3, value_dim=4)

# What each layer keeps, and what a config.json for transformers.js says of it.
RUNS = {
    "keys and values": [(KEYS,), (KEYS,)],
    "wider keys in a layer": [(KEYS,), (WIDE,)],
    "fewer heads in a layer": [(KEYS,), (ONE_HEAD,)],
    "layers without a state": [(), (KEYS,), (), (KEYS,)],
    "nothing at the end": [(KEYS,), (KEYS,), ()],
    "Gated DeltaNet": [(CONV, DELTA), (KEYS,)],
    "Gated DeltaNet, wider keys, gaps": [(), (CONV, DELTA), (WIDE,), (KEYS,), ()],
    "Mamba-2": [(CONV, SSM), (KEYS,)],
    "Mamba-2 alone": [(CONV, SSM), (CONV, SSM)],
    "Falcon-H1": [(KEYS, CONV, SSM), (KEYS, CONV, SSM)],
    "short convolutions": [(CONV,), (KEYS,), (CONV,)],
    "short convolutions alone": [(CONV,), (CONV,)],
    "convolutions with and without a recurrent state": [(CONV,), (CONV, DELTA), (KEYS,)],
}
REFUSED = {
    "two convolutions": ([(CONV, DELTA), (SHORT_CONV, DELTA)], "all layers the convolution state of the first"),
    "two short convolutions": ([(CONV,), (SHORT_CONV,), (KEYS,)], "all layers the convolution state of the first"),
    "two recurrent states": ([(CONV, DELTA), (CONV, DELTA_TURNED)], "all layers the recurrent state of the first"),
    "two names": ([(CONV, DELTA), (CONV, SSM), (KEYS,)], "all layers the recurrent state of the first"),
    "no convolution": ([(DELTA,), (KEYS,)], "a convolution state in every layer with a recurrent state"),
    "no convolution in a layer": ([(CONV, DELTA), (DELTA,)], "a convolution state in every layer with a recurrent"),
    "short convolution beside keys": ([(KEYS, CONV), (KEYS,)], "either one of them or keys and values"),
    "short convolution, a layer without a state": ([(CONV,), (), (KEYS,)], "either one of them or keys and values"),
    "short convolutions, wider keys": ([(CONV,), (KEYS,), (WIDE,)], "keys and values of one shape"),
    "short convolutions, fewer heads": ([(CONV,), (KEYS,), (ONE_HEAD,)], "keys and values of one shape"),
}


@pytest.fixture(scope="module")
def bundle(bundles, tmp_path_factory):
    """Return a function that writes a bundle of layers with these states."""
    place = tmp_path_factory.mktemp("states")

    def write(name, layers, hf_config=None):
        folder = place / name.replace(" ", "_")
        if folder.is_dir():
            return folder
        return state_bundle(folder, CacheGeometry(layers=tuple(layers)), bundles["llama"], hf_config)

    return write


def in_a_loop(folder, lost=None):
    """Return the tokens of plain onnxruntime; the past named `lost` never gets its present."""
    session = ort.InferenceSession(folder / "onnx" / "model.onnx")
    pasts = {past.name: past for past in session.get_inputs()[2:]}
    feeds = {
        name: np.zeros((1, *(0 if isinstance(size, str) else size for size in past.shape[1:])), np.float32)
        for name, past in pasts.items()
    }
    step, tokens = PROMPT, []
    for _ in range(STEPS):
        mask = np.ones((1, len(PROMPT) + len(tokens)), np.int64)
        logits, *presents = session.run(None, {"input_ids": np.array([step]), "attention_mask": mask, **feeds})
        feeds = {name: feeds[name] if name == lost else present for name, present in zip(pasts, presents, strict=True)}
        step = [int(logits[0, -1].argmax())]
        tokens += step
    return tokens


@pytest.mark.parametrize("name", RUNS)
def test_a_client_that_loses_a_state_writes_other_tokens(bundle, name):
    """The control of all tests here: equal tokens say that each state has come back."""
    folder = bundle(name, RUNS[name])
    expected = in_a_loop(folder)
    names = [past.name for past in ort.InferenceSession(folder / "onnx" / "model.onnx").get_inputs()[2:]]
    assert names
    assert [past for past in names if in_a_loop(folder, past) == expected] == []


@pytest.mark.parametrize("name", RUNS)
def test_genai_keeps_any_states_that_it_is_given_a_config_for(bundle, name):
    folder = bundle(name, RUNS[name])
    expected = in_onnxruntime(folder)
    assert expected == in_a_loop(folder)
    report = check(folder)
    assert report.keeps_contract, report.contract
    assert report.verdict("onnxruntime") == report.verdict(GENAI) == "loads", report.clients
    assert in_genai(folder) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_genai_cannot_keep_have_no_config(bundle, name):
    layers, reason = REFUSED[name]
    folder = bundle(name, layers)
    assert not (folder / "genai_config.json").exists()
    obstacle = genai_obstacle(CacheGeometry(layers=tuple(layers)))
    assert reason in obstacle
    card = (folder / "README.md").read_text()
    assert f"onnxruntime-genai cannot run this model. {obstacle}" in card
    assert "import onnxruntime_genai" not in card
    assert in_onnxruntime(folder) == in_a_loop(folder)
    # It does not help to write one all the same, and `check` knows it of a folder that has one.
    (folder / "genai_config.json").write_text(json.dumps(genai_config(Manifest.read(folder))))
    assert check(folder).verdict(GENAI) == "does not load", check(folder).clients
    with pytest.raises(Exception, match="(?s)."):  # whatever it raises
        in_genai(folder)


# transformers.js: what each layer keeps, and the config.json by which it names that.
NEW_WORDS = ["linear_attention", "full_attention"]
LAYERS = {"num_hidden_layers": 2}
IN_NODE = {
    "wider keys in a layer": ([(KEYS,), (WIDE,)], {"model_type": "llama", **LAYERS}),
    "layers without a state": ([(), (KEYS,)], {"model_type": "llama", **LAYERS}),
    "qwen3_5_text": ([(CONV, DELTA), (KEYS,)], {"model_type": "qwen3_5_text", "layer_types": NEW_WORDS}),
    "qwen3_next without layer_types": ([(CONV, DELTA), (KEYS,)], {"model_type": "qwen3_next", **LAYERS}),
    "qwen3_5, nested": (
        [(CONV, DELTA), (KEYS,)],
        {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text", "layer_types": NEW_WORDS}},
    ),
    "granitemoehybrid": ([(CONV, SSM), (KEYS,)], {"model_type": "granitemoehybrid", "layer_types": NEW_WORDS}),
    "nemotron_h": (
        [(CONV, SSM), (), (KEYS,)],
        {"model_type": "nemotron_h", "layers_block_type": ["linear_attention", "moe", "full_attention"]},
    ),
    "falcon_h1": ([(KEYS, CONV, SSM)] * 2, {"model_type": "falcon_h1", **LAYERS}),
    "lfm2": ([(CONV,), (KEYS,)], {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe without layer_types": ([(CONV,), (KEYS,)], {"model_type": "lfm2_moe", "full_attn_idxs": [1]}),
    "gemma3, nested": (
        [(KEYS,), (WIDE,)],
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **LAYERS}},
    ),
}
# The same where it fails, the edit of config.json that makes it fail, and what is said.
NOT_IN_NODE = {
    "states of another type": ("lfm2", {"model_type": "llama", **LAYERS}, "It makes no caches past_conv.0"),
    "no layers": ("wider keys in a layer", {"num_hidden_layers": None}, "where num_hidden_layers is None"),
    "fewer layers": ("wider keys in a layer", {"num_hidden_layers": 1}, "no caches past_key_values.1.key"),
    "an unknown word": ("lfm2", {"layer_types": ["short_conv", "full_attention"]}, "know the layer_types short_conv"),
    "newer words": ("granitemoehybrid", {"layer_types": NEW_WORDS}, "It makes no caches past_conv.0, past_ssm.0"),
    "no layer_types": ("qwen3_next without layer_types", {"layer_types": None}, "from layer_types, which config.json"),
    "no text_config": ("gemma3, nested", {"text_config": None}, "from text_config, which config.json lacks"),
    "split convolutions": ("qwen3_5_text", {"model_type": "olmo_hybrid"}, "It makes no caches past_conv.0"),
    "shared keys": (
        "wider keys in a layer",
        {"model_type": "gemma4_text", "num_kv_shared_layers": 1},
        "no model_type 'gemma4_text' among its decoders",
    ),
    "several graphs": (
        "wider keys in a layer",
        {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", **LAYERS}},
        "It reads a gemma4 from several graphs",
    ),
    "the text model of a bigger one": (
        "gemma3, nested",
        {"architectures": ["Gemma3ForConditionalGeneration"]},
        "It reads a gemma3 from several graphs",
    ),
    "no keys": ([(CONV,), (CONV,)], {"model_type": "lfm2", "layer_types": ["conv", "conv"]}, "by a layer's keys"),
}


def test_transformers_js_names_states_by_config_json(bundle, places):
    folders = {name: bundle(f"in node, {name}", *IN_NODE[name]) for name in IN_NODE}
    for name, folder in folders.items():
        assert check(folder).verdict(NODE) == "loads", (name, check(folder).clients[NODE])
    require(NodeClient(), places)
    found = dict(zip(folders, in_node(folders.values(), places), strict=True))
    assert found == {name: in_onnxruntime(folder) for name, folder in folders.items()}


def test_transformers_js_misses_states_not_in_config_json(bundle, tmp_path, places):
    folders = {}
    for number, (name, (what, edits, says)) in enumerate(NOT_IN_NODE.items()):
        layers, config = IN_NODE[what] if isinstance(what, str) else (what, {"model_type": "llama"})
        geometry = CacheGeometry(layers=tuple(layers))
        folder = state_bundle(tmp_path / str(number), geometry, bundle("llama", [(KEYS,)]))
        (folder / "config.json").write_text(
            json.dumps(with_transformers_js_config(config, Manifest.read(folder)) | edits)
        )
        errors = [str(each) for each in check(folder).clients[NODE] if each.severity == "error"]
        assert any(says in each for each in errors), (name, errors)
        folders[name] = folder
    require(NodeClient(), places)
    found = dict(zip(folders, in_node(folders.values(), places), strict=True))
    assert {name for name, tokens in found.items() if isinstance(tokens, list)} == set(), found


# One fault in a bundle of LFM2: the edit, the clients (other than edgeformer) that do not load it, a part of a finding.
ORT = ("onnxruntime", "onnxruntime-cpp")
BROWSER = "transformers.js-browser"
LAYER_TYPES, INPUTS = "model/decoder/layer_types", "model/decoder/inputs"


def resize(name, place, value):
    """Return an edit that sets a dimension of an input or output, to a number or a symbol."""

    def change(model):
        for tensor in [*model.graph.input, *model.graph.output]:
            if tensor.name == name:
                dim = tensor.type.tensor_type.shape.dim[place]
                dim.Clear()
                setattr(dim, "dim_value" if isinstance(value, int) else "dim_param", value)

    return lambda edit: edit.graph(change)


def set_genai(place, value):
    return lambda edit: edit.json("genai_config.json", place, value)


FAULTS = {
    "a state renamed": (
        lambda edit: edit.rename("past_conv.2", "conv.2"), (*ORT, GENAI, NODE, BROWSER), "requires conv.2",
    ),
    "a new state renamed": (
        lambda edit: edit.rename("present_conv.2", "conv.2"), (*ORT, GENAI, NODE, BROWSER), "present_conv.2.",
    ),
    "a symbol for the width": (
        resize("past_conv.0", 2, "width"), (*ORT, GENAI, NODE, BROWSER),
        "the width of past_conv.0 is the symbol 'width' and must be a number",
    ),
    "genai: no types of layers": (set_genai(LAYER_TYPES, None), (GENAI,), "has 0 model.decoder.layer_types for 3"),
    "genai: other types of layers": (
        set_genai(LAYER_TYPES, ["conv", "conv", "full_attention"]), (GENAI,),
        "has no input past_conv.1, past_key_values.2.key",
    ),
    "genai: no types of layers, another type": (
        lambda edit: [set_genai(LAYER_TYPES, None)(edit), set_genai("model/type", "decoder")(edit)], (GENAI,),
        "requires past_conv.0, past_conv.2, which it does not provide. Export the model again",
    ),
    "genai: no names": (set_genai(INPUTS, None), (GENAI,), "no input past_key_values.0.conv_state"),
    "genai: other heads": (
        set_genai("model/decoder/num_key_value_heads", 4), (GENAI,), "4 heads of 16, as genai_config.json says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_state_is_found(fault, bundles, spoil):
    change, clients, words = FAULTS[fault]
    folder = spoil(bundles["lfm2"], change)
    report = check(folder)
    said = [str(each) for findings in (report.contract, *report.clients.values()) for each in findings]
    assert [text for text in said if words in text], said
    failing = {name for name in report.clients if report.verdict(name) == "does not load"}
    assert failing - {"edgeformer", "optimum"} == set(clients), said
    for client, run in (("onnxruntime", in_onnxruntime), (GENAI, in_genai)):
        if client in clients:
            with pytest.raises(Exception, match="(?s)."):  # whatever it raises
                run(folder)
        else:
            assert run(folder) == in_onnxruntime(bundles["lfm2"])


def test_transformers_js_fails_where_it_is_said_to(bundles, tmp_path, places):
    require(NodeClient(), places)
    folders = [shutil.copytree(bundles["lfm2"], tmp_path / str(number)) for number, _ in enumerate(FAULTS)]
    for (change, *_), folder in zip(FAULTS.values(), folders, strict=True):
        change(Edit(folder))
    found = dict(zip(FAULTS, in_node(folders, places), strict=True))
    failing = {fault for fault, (_, clients, _) in FAULTS.items() if NODE in clients}
    assert {fault for fault, tokens in found.items() if isinstance(tokens, str)} == failing, found
    assert all(found[fault] == in_onnxruntime(bundles["lfm2"]) for fault in FAULTS.keys() - failing)


def test_a_state_that_changes_its_size_is_no_state(bundles, spoil):
    report = check(spoil(bundles["lfm2"], resize("present_conv.0", 2, 3)))
    says = "past_conv.0 is [batch_size, 64, 2] and present_conv.0 is [batch_size, 64, 3]; a state of fixed size is fed"
    assert not report.keeps_contract
    assert any(says in str(finding) for finding in report.contract), report.contract
