"""A bundle of a stranger reads nothing outside of its folder, runs no code, and says what is wrong with it."""

import hashlib
import json
import pickle
import shutil
from types import SimpleNamespace

import onnx
import pytest

from edgeformer.check import check
from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.checkpoints.tensor_files import open_tensors
from edgeformer.errors import BundleError, RequestError, WeightsError
from edgeformer.manifest.manifest import FILE_NAME
from edgeformer.runtime import load
from edgeformer.runtime.sessions import session
from edgeformer.runtime.text import tokenizer


@pytest.fixture
def bundle(llama_bundle, tmp_path):
    return shutil.copytree(llama_bundle, tmp_path / "bundle")


def replace_file(bundle, name, content):
    """Replace a file, and what the manifest says of it, as the author of a bundle can."""
    (bundle / name).write_bytes(content)
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["parity"] = None
    (bundle / FILE_NAME).write_text(json.dumps(manifest))


def changed_graph(bundle, change):
    model = onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)
    change(model)
    replace_file(bundle, "onnx/model.onnx", model.SerializeToString())


def test_a_link_to_a_file_outside_is_refused(bundle, tmp_path):
    data = bundle / "onnx" / "model.onnx_data"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=r"onnx/model\.onnx_data is a link to a file outside the folder"):
        load(bundle)


@pytest.mark.parametrize("location", ["../../secret", "{}/secret", "linked"])
def test_weights_outside_the_folder_are_refused(bundle, tmp_path, location):
    """onnxruntime itself refuses locations that leave the folder; this holds it to that."""
    secret = tmp_path / "secret"
    shutil.copy(bundle / "onnx" / "model.onnx_data", secret)
    (bundle / "onnx" / "linked").symlink_to(secret)

    def move(model):
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location.format(tmp_path)

    changed_graph(bundle, move)
    with pytest.raises(BundleError, match=r"onnxruntime cannot load .*(?i:path|escape|outside|link|director)"):
        load(bundle)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_a_manifest_cannot_name_a_file_outside(bundle, name):
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": ""}
    (bundle / FILE_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="outside the bundle. Do not trust it"):
        load(bundle)


def test_libraries_that_a_config_names_are_not_loaded(bundle, tmp_path, monkeypatch):
    """Only onnxruntime-genai reads genai_config.json; a library beside the bundle or in it is none of ours."""
    config = json.loads((bundle / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["custom_ops_library"] = str(tmp_path / "evil.so")
    replace_file(bundle, "genai_config.json", json.dumps(config).encode())
    (bundle / "libedgeformer_kernels.so").write_bytes(b"no library")
    monkeypatch.delenv("EDGEFORMER_KERNELS", raising=False)
    monkeypatch.chdir(bundle)
    assert load(bundle).generate([1, 2], max_new_tokens=2)


def test_pickles_are_not_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is a pickle, which is not read"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, r"names the file '\.\./model\.safetensors', which is outside"),
        ({"weight_map": {"a": "/etc/hostname"}}, "which is outside its folder. Do not trust it"),
        ({"weight_map": ["a"]}, "must have a weight_map: an object with the file of each tensor"),
        ({"weight_map": {"a": {}}}, "must have a weight_map: an object with the file of each tensor"),
        ({}, "must have a weight_map"),
        (3, "it must hold a JSON object"),
    ],
)
def test_an_index_of_another_form_is_refused(tmp_path, index, message):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=message):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("holder", "name", "message"),
    [
        ("output", "logits", "model.onnx has no output logits, which its manifest implies"),
        ("output", "present.1.value", r"has no output present\.1\.value"),
        ("input", "past_key_values.2.key", r"has no input past_key_values\.2\.key"),
    ],
)
def test_a_graph_without_what_the_manifest_implies_is_refused(bundle, holder, name, message):
    def rename(model):
        for node in model.graph.node:
            for names in (node.input, node.output):
                for place, each in enumerate(names):
                    names[place] = "other" if each == name else each
        next(each for each in getattr(model.graph, holder) if each.name == name).name = "other"

    changed_graph(bundle, rename)
    with pytest.raises(BundleError, match=message):
        load(bundle)


def test_a_graph_that_does_not_run_is_named(bundle):
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["cache"] = [{"repeat": 3, "states": [{"kind": "key_value", "num_kv_heads": 2, "head_dim": 7}]}]
    (bundle / FILE_NAME).write_text(json.dumps(manifest))
    model = load(bundle)
    with pytest.raises(BundleError, match=r"(?s)onnxruntime cannot run .*model\.onnx: .*Check the bundle with"):
        model.generate([1, 2], max_new_tokens=2)


def test_a_template_that_is_no_text_is_refused(tiny_llama_bundle, tmp_path):
    bundle = shutil.copytree(tiny_llama_bundle, tmp_path / "bundle")
    (bundle / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BundleError, match=r"chat_template\.jinja cannot be read: it is not UTF-8"):
        from edgeformer.runtime.text.tokenizer import Tokenizer

        Tokenizer(bundle)
    (bundle / "chat_template.jinja").unlink()
    (bundle / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(BundleError, match=r"tokenizer_config\.json has chat_template = 3 \(int\); it must be a text"):
        Tokenizer(bundle)


def test_a_window_of_a_graph_that_no_memory_has_is_one_sentence(bundle):
    def widen(model):
        for value in (*model.graph.input, *model.graph.output):
            if value.name.endswith((".key", ".value")):
                value.type.tensor_type.shape.dim[2].dim_value = 2**62

    changed_graph(bundle, widen)
    with pytest.raises(
        RequestError, match=r"a cache of 1 x 2 x 4,611,686,018,427,387,904 x 16 numbers cannot be alloc"
    ):
        load(bundle).generate([1, 2], max_new_tokens=2)


def test_check_says_that_a_graph_has_names_that_are_no_text(bundle):
    graph = bundle / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes().replace(b"past_key_values.0.key", b"past_key_values.0.\xff\xfe\xfd"))
    report = check(bundle)
    assert any("model.onnx cannot be read: it is not an ONNX graph: " in str(each) for each in report.contract)


def test_an_error_of_onnxruntime_that_is_no_text_is_one_sentence(bundle, monkeypatch):
    """Its messages cite names of the graph, which need not be UTF-8."""

    class Unreadable:
        def __init__(self, *arguments, **options):
            b"\xe7 is no text".decode()

    monkeypatch.setattr(session, "_graph_session", lambda base: Unreadable)
    with pytest.raises(BundleError, match="onnxruntime cannot load .*: 'utf-8' codec can't decode"):
        load(bundle)


def test_a_name_that_no_file_can_have_is_a_missing_file(bundle):
    manifest = json.loads((bundle / FILE_NAME).read_text())
    manifest["files"]["a" * 300] = {"bytes": 1, "sha256": "0"}
    (bundle / FILE_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="a{300} is missing"):
        load(bundle)


def test_a_tokenizer_that_cannot_be_copied_is_one_sentence(monkeypatch):
    def fail(text):
        raise Exception("Token `x` out of vocabulary")

    spoilt = tokenizer.Tokenizer(PRESETS / "tiny-embed")
    monkeypatch.setattr(tokenizer, "tokenizers", SimpleNamespace(Tokenizer=SimpleNamespace(from_str=fail)))
    with pytest.raises(BundleError, match="the tokenizer cannot be copied, so it cuts no texts: Token `x` out of"):
        spoilt.encode_truncated(["a text"], 3)


@pytest.mark.parametrize(
    "encode",
    [
        lambda own: own.encode("a text"),
        lambda own: own.encode_pair("a text", "another"),
        lambda own: own.encode_truncated(["a text"], 3),
        lambda own: own.encode_windows("a text", "another", 8, 2),
    ],
    ids=["a text", "a pair", "truncated", "windows"],
)
def test_a_tokenizer_that_cannot_encode_is_one_sentence(monkeypatch, encode):
    class Panic(BaseException):
        """As the extension of `tokenizers` raises them."""

    def fail(*texts, add_special_tokens):
        raise Panic("no entry found for key")

    backend = SimpleNamespace(encode=fail, enable_truncation=lambda *_, **__: None)
    spoilt = tokenizer.Tokenizer(PRESETS / "tiny-embed")
    monkeypatch.setattr(spoilt, "backend", backend)
    monkeypatch.setattr(spoilt, "_copy", lambda: backend)
    with pytest.raises(BundleError, match="the tokenizer cannot encode the text: no entry found for key"):
        encode(spoilt)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task": "encoder"}, "the task is encoder, and the model is one of another task"),
        ({"task": "encoder", "model": None}, "the task is encoder, and there is no model"),
        ({"task": "seq2seq-lm", "model": None}, "the task is seq2seq-lm, and there is no model"),
        ({"vocab_size": -1_000_000_000}, "vocab_size is -1000000000; it must be 1 or larger"),
        ({"context_length": 0}, "context_length is 0; it must be 1 or larger"),
    ],
)
def test_a_model_that_the_manifest_cannot_have_is_one_sentence(bundle, change, what):
    manifest = json.loads((bundle / FILE_NAME).read_text())
    (bundle / FILE_NAME).write_text(json.dumps(manifest | change))
    with pytest.raises(BundleError, match=f"is damaged: {what}"):
        load(bundle)
