"""The verdicts of `check` agree with the clients, where these are installed."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime_genai as og
import pytest
from run_clients import PROMPT, STEPS, in_genai, in_node, in_onnxruntime, require
from verification.client_programs.browser import BrowserClient
from verification.client_programs.client import EXAMPLES, ClientError
from verification.client_programs.programs import NodeClient

from edgeformer.check import check
from edgeformer.check.client_rules import genai_keys as keys
from edgeformer.check.client_rules import transformers_js_types as types
from edgeformer.runtime import load

DECODERS = ["llama", "qwen3", "gemma2", "gpt2", "falcon", "static", "dynamic", "int4", "bf16", "int8 cache", "lfm2"]

# Bundles that a client does not load; it loads all others. Optimum ran in its own environment, the browser where one is
# installed.
FAILS = {
    "onnxruntime-cpp": {"dynamic"},
    "onnxruntime-genai": {"bert", "answers"},
    "transformers.js-node": {"static", "falcon"},
    "transformers.js-browser": {"static", "falcon", "int4", "bf16"},
    "optimum": {"qwen3", "gemma2", "static", "lfm2"},
}


@pytest.fixture(scope="module")
def expected(bundles):
    """Return the tokens that edgeformer's runtime generates."""
    return {name: load(bundles[name]).generate(PROMPT, max_new_tokens=STEPS).token_ids for name in DECODERS}


def loads(bundles, client):
    return {name for name, bundle in bundles.items() if check(bundle).verdict(client) == "loads"}


def test_the_table(bundles):
    for name, bundle in bundles.items():
        report = check(bundle)
        assert report.keeps_contract, report.contract
        failing = {client for client in report.clients if report.verdict(client) == "does not load"}
        assert failing == {client for client, names in FAILS.items() if name in names}, report.clients


# onnxruntime


def test_a_loop_over_onnxruntime(bundles, expected):
    assert {name: in_onnxruntime(bundles[name]) for name in DECODERS} == expected
    assert loads(bundles, "onnxruntime") == set(bundles)


@pytest.mark.parametrize("name", DECODERS)
def test_one_buffer_as_past_and_present(bundles, expected, spoil, name):
    """Bind one buffer as the C++ example does, by telling the Python example that the cache is not dynamic."""
    folder = spoil(bundles[name], lambda edit: edit.json("edgeformer.json", "plan/cache_form", "any"))
    if check(bundles[name]).verdict("onnxruntime-cpp") == "loads":
        assert in_onnxruntime(folder) == expected[name]
    else:
        with pytest.raises(Exception, match="shape"):
            in_onnxruntime(folder)


# onnxruntime-genai


def test_onnxruntime_genai(bundles, expected):
    assert {name: in_genai(bundles[name]) for name in DECODERS} == expected
    assert loads(bundles, "onnxruntime-genai") == set(DECODERS)
    with pytest.raises(Exception, match="genai_config.json"):
        og.Model(str(bundles["bert"]))


def test_a_shared_buffer_of_a_dynamic_cache_crashes_genai(bundles, spoil):
    share = "search/past_present_share_buffer"
    folder = spoil(bundles["dynamic"], lambda edit: edit.json("genai_config.json", share, True))
    assert check(folder).verdict("onnxruntime-genai") == "does not load"
    line = [sys.executable, EXAMPLES / "genai.py", folder, " ".join(map(str, PROMPT)), "--ids", "--new-tokens", "6"]
    assert subprocess.run(line, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("name", ["gpt2", "dynamic", "static"])
def test_tables_of_positions_are_found_in_every_op_set(bundles, spoil, name):
    folder = spoil(bundles[name], lambda edit: edit.json("genai_config.json", "model/context_length", 65))
    (finding,) = check(folder).clients["onnxruntime-genai"]
    assert "the tables of positions in onnx/model.onnx have 64 rows: token 65 fails" in str(finding)


SAMPLES = {
    keys.INTEGER: 1, keys.NUMBER: 0.5, keys.BOOL: True, keys.TEXT: "", keys.LIST: [], keys.ANYTHING: {},
}  # fmt: skip
PICKY = {"graph_optimization_level": "ORT_ENABLE_ALL", "eos_token_id": 1}


def parsed(tmp_path, config):
    """Return genai's error message for a config; None if it accepts it."""
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    try:
        og.Config(str(tmp_path))
    except RuntimeError as error:
        return str(error)


def every_key(schema, path=()):
    for key, kind in schema.items():
        if isinstance(kind, dict):
            yield from every_key(kind, (*path, key))
            yield (*path, key), kind
        elif key != "*":
            yield (*path, key), kind


def with_context(path, value):
    """Return a config with this value at a path, and with the fields that genai requires."""
    for key in reversed(path):
        value = {key: value}
    value.setdefault("model", {}).setdefault("context_length", 1)
    return value


def test_the_keys_of_genai_are_those_of_the_installed_package(tmp_path):
    for path, kind in every_key(keys.ROOT):
        value = {} if isinstance(kind, dict) else SAMPLES[kind]
        assert parsed(tmp_path, with_context(path, PICKY.get(path[-1], value))) is None, path
        if isinstance(kind, dict) and "*" not in kind:
            assert "Unknown value" in parsed(tmp_path, with_context((*path, "no_such_key"), 1)), path


# transformers.js


def test_transformers_js_in_node(bundles, expected, places):
    require(NodeClient(), places)
    found = dict(zip(bundles, in_node(bundles.values(), places), strict=True))
    assert found.pop("bert") == [1, len(PROMPT), 40]
    ours = load(bundles["answers"]).run([PROMPT], ["start_logits", "end_logits"])
    spans = np.concatenate([ours["start_logits"], ours["end_logits"]])
    assert np.abs(np.array(found.pop("answers")) - spans).max() < 1e-5
    assert {"bert", "answers"} < loads(bundles, "transformers.js-node")
    running = loads(bundles, "transformers.js-node") - {"bert", "answers"}
    assert running == {name for name, tokens in found.items() if isinstance(tokens, list)}, found
    assert {name: found[name] for name in running} == {name: expected[name] for name in running}


@pytest.mark.parametrize(("name", "says"), [("int4", "GatherBlockQuantized"), ("bf16", "Cast")])
def test_kernels_that_a_browser_lacks(bundles, places, name, says):
    require(BrowserClient(), places)
    with pytest.raises(ClientError, match=f"Could not find an implementation for {says}"):
        BrowserClient().generate(bundles[name], [PROMPT], STEPS, places)


def test_a_browser_that_is_told_webgpu_gathers_from_blocks(bundles, tmp_path):
    copy = shutil.copytree(bundles["int4"], tmp_path / "bundle")
    config = json.loads((copy / "config.json").read_text())
    assert check(copy).verdict("transformers.js-browser") == "does not load"
    config["transformers.js_config"]["device"] = "webgpu"
    (copy / "config.json").write_text(json.dumps(config))
    assert check(copy).verdict("transformers.js-browser") == "loads"


def test_types_are_those_of_the_installed_package(places):
    require(NodeClient(), places)
    package = places.node_modules / "@huggingface" / "transformers"
    assert json.loads((package / "package.json").read_text())["version"] == types.VERSION
    registry, configs = ((package / "src" / name).read_text() for name in ("models/registry.js", "configs.js"))
    maps = {
        name: set(re.findall(r"\['([^']+)', '", body))
        for name, body in re.findall(
            r"const MODEL_FOR_(\w+)_MAPPING_NAMES = new Map\(\[(.*?)\]\);", registry, re.DOTALL
        )
    }
    assert maps["CAUSAL_LM"] == types.CAUSAL_LM
    assert maps["SEQ_TO_SEQ_CAUSAL_LM"] | maps["SPEECH_SEQ_2_SEQ"] == types.SEQ2SEQ_LM
    assert maps["MASKED_LM"] == types.MASKED_LM
    assert maps["SEQUENCE_CLASSIFICATION"] == types.CLASSIFICATION
    assert maps["TOKEN_CLASSIFICATION"] == types.TOKEN_CLASSIFICATION
    assert maps["QUESTION_ANSWERING"] == types.QUESTION_ANSWERING
    assert maps["IMAGE_TEXT_TO_TEXT"] == types.IMAGE_TEXT
    assert maps["AUDIO_TEXT_TO_TEXT"] == types.AUDIO_TEXT
    nested = configs[configs.index("// Sub-configs") : configs.index("getNormalizedConfig(config.text_config)")]
    others = {"florence2", "chatterbox"}  # encoder-decoders, and speech
    assert set(re.findall(r"case '(\w+)'", nested)) - others == types.TEXT_CONFIG - {"qwen3_5", "qwen3_5_moe"}
    for model_type in ("llama", "gpt2", "mpt", "bart", "t5"):
        case = configs[configs.index(f"case '{model_type}':") :]
        key = re.search(r"mapping\['num_(?:decoder_)?layers'\] = '(\w+)'", case)[1]
        assert key == types.LAYERS.get(model_type, "num_hidden_layers")


def test_it_needs_neither_torch_nor_a_client(bundles):
    code = (
        "import sys\n"
        "for name in ('torch', 'onnxruntime', 'onnxruntime_genai', 'transformers'): sys.modules[name] = None\n"
        "from edgeformer.check import check\n"
        "print(check(sys.argv[1]).verdict('onnxruntime-genai'))"
    )
    done = subprocess.run([sys.executable, "-c", code, bundles["llama"]], capture_output=True, text=True, check=True)
    assert done.stdout == "loads\n"
