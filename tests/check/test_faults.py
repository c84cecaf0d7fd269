"""`check` finds one fault at a time, and names the clients that do not load the folder because of it."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
import pytest
from edits import Edit
from run_clients import PROMPT, STEPS, in_genai, in_node, in_onnxruntime, require
from verification.client_programs.programs import NodeClient

from edgeformer.check import check
from edgeformer.check.folder import read_folder
from edgeformer.errors import BundleError
from edgeformer.runtime import load

NODE, BROWSER = "transformers.js-node", "transformers.js-browser"
JS = (NODE, BROWSER)
ORT = ("onnxruntime", "onnxruntime-cpp")
GENAI, OPTIMUM = "onnxruntime-genai", "optimum"
ALL = (*ORT, GENAI, *JS, OPTIMUM)

DATA = "onnx/model.onnx_data"
CONTEXT, MAX_LENGTH = "model/context_length", "search/max_length"
CHUNKS, DTYPE = "transformers.js_config/use_external_data_format", "transformers.js_config/dtype"


def cut(edit):
    path = edit.folder / DATA
    os.truncate(path, path.stat().st_size - 1000)


def leave_the_folder(model):
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../../weights.onnx_data"


def want_a_speaker(model):
    for values, name in ((model.graph.input, "speaker"), (model.graph.output, "heard")):
        values.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch_size"]))
    model.graph.node.append(onnx.helper.make_node("Neg", ["speaker"], ["heard"]))


def take_int32(model):
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


def set_ir(model):
    model.ir_version = 15  # onnxruntime 1.32 reads up to 14


def set_opset(model):
    model.opset_import[0].version = 29  # onnxruntime 1.32 knows up to 28


def use_a_foreign_op(model):
    model.graph.node[0].domain = "my.ops"


def set_genai(place, value):
    return lambda edit: edit.json("genai_config.json", place, value)


def set_config(place, value):
    return lambda edit: edit.json("config.json", place, value)


def remove(name):
    return lambda edit: (edit.folder / name).unlink()


# By fault: the edit of the folder, the clients (other than edgeformer) that do not load it then, a part of the finding.
FAULTS = {
    "an input renamed": (
        lambda edit: edit.rename("input_ids", "tokens"), ALL, "has no input input_ids",
    ),
    "a cache renamed": (
        lambda edit: edit.rename("past_key_values.1.key", "past.1.key"), (*ORT, GENAI, *JS),
        "has no input past_key_values.1.key",
    ),
    "an output renamed": (
        lambda edit: edit.rename("present.1.key", "new.1.key"), (*ORT, GENAI, *JS), "does not return present.1.key",
    ),
    "one input more": (lambda edit: edit.graph(want_a_speaker), ALL, "requires speaker"),
    "tokens as int32": (
        lambda edit: edit.graph(take_int32), (*ORT, *JS), "input_ids is int32, and token ids and masks are int64",
    ),
    "a symbol for head_dim": (
        lambda edit: edit.dims(3, "head_dim"), (*ORT, *JS), "have the symbols head_dim; it knows batch_size",
    ),
    "another name for the batch": (
        lambda edit: edit.dims(0, "batch"), JS, "have the symbols batch; it knows batch_size",
    ),
    "a cache of fixed length": (
        lambda edit: edit.dims(2, 64), ORT, "past_key_values.0.key has a fixed length of 64 tokens",
    ),
    "weights cut off": (cut, ALL, "onnx/model.onnx_data is cut off: it has"),
    "no weights": (remove(DATA), ALL, "onnx/model.onnx_data is missing: the weights of onnx/model.onnx."),
    "weights elsewhere": (
        lambda edit: edit.graph(leave_the_folder), ALL, "from '../../weights.onnx_data', which is outside its folder",
    ),
    "a newer IR": (
        lambda edit: edit.graph(set_ir), ALL, "has ONNX IR version 15, and onnxruntime 1.32.0 reads up to 14",
    ),
    "a newer opset": (
        lambda edit: edit.graph(set_opset), ALL, "has opset 29, and onnxruntime 1.32.0 knows up to 28",
    ),
    "no genai_config.json": (remove("genai_config.json"), (GENAI,), "There is no genai_config.json that can be read."),
    "genai: a context beyond the table": (
        set_genai(CONTEXT, 4096), (GENAI,),
        "a context of 4,096 tokens, and the tables of positions in onnx/model.onnx have 1,024 rows: token 1,025 fails",
    ),
    "genai: longer than the context": (
        set_genai(MAX_LENGTH, 1025), (GENAI,), "search.max_length is 1,025, more than model.context_length, 1,024",
    ),
    "genai: an unknown key": (
        set_genai("model/contextlength", 512), (GENAI,),
        "the key model.contextlength, which it does not know; this is an error for it. It knows context_length; else",
    ),
    "genai: an unknown key inside": (
        set_genai("model/decoder/inputs/past_keys", "x"), (GENAI,), "has the key model.decoder.inputs.past_keys",
    ),
    "genai: a value of another type": (
        set_genai(CONTEXT, "512"), (GENAI,), "model.context_length is '512'; it must be an integer.",
    ),
    "genai: an unknown type": (set_genai("model/type", "llama9"), (GENAI,), "has the type 'llama9'"),
    "genai: no vocabulary": (set_genai("model/vocab_size", None), (GENAI,), "vocab_size is 0; it must be 1 or greater"),
    "genai: another vocabulary": (
        set_genai("model/vocab_size", 2050), (GENAI,),
        "vocab_size is 2,050, and onnx/model.onnx returns logits of 2,048",
    ),
    "genai: an end that is no token": (
        set_genai("model/eos_token_id", [0, 5000]), (GENAI,), "model.eos_token_id 5000 is not below model.vocab_size",
    ),
    "genai: no such graph": (
        set_genai("model/decoder/filename", "model.onnx"), (GENAI,), "names model.onnx, which is not there",
    ),
    "genai: no graph": (set_genai("model/decoder/filename", None), (GENAI,), "names no graph (model.decoder.filename)"),
    "no tokenizer_config.json": (
        remove("tokenizer_config.json"), (GENAI, *JS), "There is no tokenizer_config.json, without which it opens no",
    ),
    "no config.json": (remove("config.json"), (*JS, OPTIMUM), "There is no config.json"),
    "js: too many chunks": (
        set_config(CHUNKS, {"model.onnx": 2}), JS, "model.onnx has 2 files of weights, and model.onnx_data_1 is not",
    ),
    "js: no chunks": (set_config(CHUNKS, 0), (BROWSER,), "A browser does not fetch model.onnx_data"),
    "js: another dtype": (
        set_config(DTYPE, "q8"), JS, "It looks for onnx/model_quantized.onnx, which is not there: the dtype in config",
    ),
    "js: no dtype": (
        set_config(DTYPE, None), (BROWSER,), "which is not there: the dtype in config.json is not set",
    ),
    "js: weights too large": (
        lambda edit: os.truncate(edit.folder / DATA, 2**31), (BROWSER,), "is larger than an array of a browser, 2 GB",
    ),
    "js: fewer layers": (
        set_config("num_hidden_layers", 1), JS, "in config.json, where num_hidden_layers is 1",
    ),
    "another type of model": (
        set_config("model_type", "zebra"), (*JS, OPTIMUM), "no model_type 'zebra' among its decoders",
    ),
    "heads that are not counted": (
        set_config("model_type", "phi3"), (OPTIMUM,), "makes the empty cache of a phi3 with",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(talker):
    return check(talker)


@pytest.fixture(scope="module")
def tokens(talker):
    """Return the tokens that edgeformer's runtime generates."""
    return load(talker).generate(PROMPT, max_new_tokens=STEPS).token_ids


def said(report):
    return [str(each) for findings in (report.contract, *report.clients.values()) for each in findings]


def test_the_untouched_bundle_has_no_finding(sound):
    assert sound.contract == ()
    assert dict.fromkeys(sound.clients, ()) == sound.clients


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, talker, spoil):
    change, clients, words = FAULTS[fault]
    report = check(spoil(talker, change))
    assert [text for text in said(report) if words in text], said(report)
    failing = {name for name in report.clients if report.verdict(name) == "does not load"}
    # edgeformer's runtime compares the sizes of files with the manifest; it does not see a change that keeps the size.
    assert failing - {"edgeformer"} == set(clients), said(report)


# Faults that only long texts, or apps without a length limit, run into; and a file that is too large to be copied.
LATER = {"genai: a context beyond the table", "genai: longer than the context", "js: weights too large"}


# The Python example takes every size that the graph gives; loops with a length of their own cannot.
TAKEN = ("onnxruntime", "a cache of fixed length")


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - LATER))
@pytest.mark.parametrize(("client", "run"), [("onnxruntime", in_onnxruntime), (GENAI, in_genai)])
def test_a_client_fails_where_it_is_said_to(client, run, fault, talker, tokens, spoil):
    change, clients, _ = FAULTS[fault]
    folder = spoil(talker, change)
    if client in clients and (client, fault) != TAKEN:
        with pytest.raises(Exception, match="(?s)."):  # whatever a client raises
            run(folder)
    else:
        assert run(folder) == tokens


def test_a_context_beyond_the_table_fails_in_genai(talker, spoil):
    folder = spoil(talker, FAULTS["genai: a context beyond the table"][0])
    params = og.GeneratorParams(model := og.Model(str(folder)))
    params.set_search_options(max_length=1100, do_sample=False)
    with pytest.raises(Exception, match="1024|cos_cache"):
        og.Generator(model, params).append_tokens(np.full((1, 1030), 5, np.int32))


def test_a_length_beyond_the_context_fails_in_genai(talker, spoil):
    model = og.Model(str(spoil(talker, FAULTS["genai: longer than the context"][0])))
    with pytest.raises(RuntimeError, match="cannot be greater than model context_length"):
        og.Generator(model, og.GeneratorParams(model))


def test_transformers_js_fails_where_it_is_said_to(talker, tokens, tmp_path, places):
    require(NodeClient(), places)
    names = sorted(FAULTS.keys() - LATER)
    folders = [shutil.copytree(talker, tmp_path / str(number)) for number, _ in enumerate(names)]
    for name, folder in zip(names, folders, strict=True):
        FAULTS[name][0](Edit(folder))
    found = dict(zip(names, in_node(folders, places), strict=True))
    failing = {name for name in names if NODE in FAULTS[name][1]}
    assert {name for name, result in found.items() if isinstance(result, str)} == failing, found
    assert all(found[name] == tokens for name in FAULTS.keys() - LATER - failing)


def test_a_foreign_op_cannot_be_judged(talker, spoil):
    report = check(spoil(talker, lambda edit: edit.graph(use_a_foreign_op)))
    assert {report.verdict(name) for name in (*ORT, GENAI, *JS, OPTIMUM)} == {"cannot tell"}
    assert any("onnx/model.onnx has ops of another library: my.ops::" in text for text in said(report))


def test_a_manifest_is_held_against_the_graph(talker, spoil):
    def change(edit):
        edit.json("edgeformer.json", "context_length", 4096)
        edit.json("edgeformer.json", "plan/cache_form", "static")
        edit.json("edgeformer.json", "vocab_size", 9)

    report = check(spoil(talker, change))
    assert not report.keeps_contract
    for words in (
        "declares a context of 4,096 tokens, and the tables of positions in onnx/model.onnx have 1,024 rows",
        "The cache form is 'static' in edgeformer.json, and 'any' in onnx/model.onnx.",
        "has a vocabulary of 9, and onnx/model.onnx returns logits of 2,048",
    ):
        assert any(words in str(each) for each in report.contract), report.contract


def test_what_is_no_json_and_what_is_no_graph(talker, spoil):
    def change(edit):
        (edit.folder / "config.json").write_text("{,}")
        (edit.folder / "genai_config.json").write_text("[]")
        (edit.folder / "onnx" / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1")

    report = check(spoil(talker, change))
    assert not report.keeps_contract
    assert not [name for name in report.clients if report.verdict(name) == "loads"]
    for words in (
        "config.json cannot be read: it is not valid JSON",
        "it must hold a JSON object",
        "it is not an ONNX graph",
    ):
        assert any(words in text for text in said(report)), said(report)


def test_a_folder_of_somebody_else(talker, spoil):
    """A folder without manifest, with another name of the graph, is loaded by clients that read genai_config.json."""

    def change(edit):
        for name in ("edgeformer.json", "config.json"):
            (edit.folder / name).unlink()
        for name in ("model.onnx", "model.onnx_data"):
            (edit.folder / "onnx" / name).rename(edit.folder / name)
        (edit.folder / "model.onnx").rename(edit.folder / "decoder.onnx")
        edit.json("genai_config.json", "model/decoder/filename", "decoder.onnx")

    report = check(spoil(talker, change))
    assert report.keeps_contract
    assert {name for name in report.clients if report.verdict(name) == "loads"} == {*ORT, GENAI}


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    """As `check /proc/1/cwd` of somebody else's process; the tests may run as root, who may read everything."""

    def refuse(path, pattern):
        raise PermissionError(13, "Permission denied", str(path / "onnx"))

    monkeypatch.setattr(Path, "rglob", refuse)
    with pytest.raises(BundleError, match=r"cannot be read: .*/onnx: Permission denied\.$"):
        read_folder(tmp_path)


def test_a_folder_of_everything_is_not_read_through(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeformer.check.folder.MOST_FILES", 3)
    for name in range(4):
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(BundleError, match="has more than 3 files in it. Give the folder of one model"):
        read_folder(tmp_path)
