"""A manifest survives its file unchanged; a folder that is not the bundle it claims to be is refused in words."""

import hashlib
import json
import re

import pytest

from edgeformer.config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig, NormConfig, RotaryConfig
from edgeformer.errors import BundleError
from edgeformer.manifest.graph_forms import BundledGraph, BundledGraphs
from edgeformer.manifest.manifest import FILE_NAME, SCHEMA_VERSION, Manifest
from edgeformer.manifest.parts import FileEntry, Provenance, SpecialTokens, StoredWeight
from edgeformer.manifest.plan import ExportPlan

CONTENTS = {"model.onnx": b"graph" * 10, "model.onnx.data": b"\x00" * 4096, "tokenizer.json": "{é}".encode()}


def _manifest(**fields):
    block = BlockConfig(
        attention=AttentionConfig(
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            scale=8**-0.5,
            qkv_bias=False,
            output_bias=False,
            rotary=RotaryConfig(rotary_dim=8, base=1e4, interleaved=False, scaling=None),
        ),
        feed_forward=FeedForwardConfig(intermediate_size=64, activation="silu", bias=False),
        norm=NormConfig(eps=1e-5),
    )
    model = DecoderConfig(
        vocab_size=100,
        hidden_size=32,
        context_length=128,
        blocks=(block, block),
        final_norm=NormConfig(eps=1e-5),
        tied_head=True,
    )
    defaults = {
        "task": "causal-lm",
        "name": "tiny",
        "provenance": Provenance(source="a folder named é", random_weights=7),
        "plan": ExportPlan(),
        "graphs": BundledGraphs(model=BundledGraph(file="model.onnx")),
        "vocab_size": model.vocab_size,
        "context_length": model.context_length,
        "cache": model.cache_geometry,
        "model": model,
        "tokens": SpecialTokens(eos=(2, 3), bos=1, pad=None),
        "files": {
            name: FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in CONTENTS.items()
        },
        "weights": {"head": StoredWeight(parameters=("embedding.weight",), transposed=True)},
        "versions": {"edgeformer": "0.1.0"},
        "parity": {"max_abs": 1e-6, "checks": [1, 2], "note": None},
    }
    return Manifest(**(defaults | fields))


@pytest.fixture
def bundle(tmp_path):
    """A folder with a manifest and the files that it names."""
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    _manifest().write(tmp_path)
    return tmp_path


def _edit(bundle, **changes):
    path = bundle / FILE_NAME
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | changes), encoding="utf-8")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"provenance": Provenance(source="a folder"), "parity": None},
        {"model": None},
        {"model": None, "provenance": Provenance(source="a folder", backend="transformers")},
        {"tokens": SpecialTokens(eos=(), bos=None, pad=0)},
        {"plan": ExportPlan(precision="fp16", provider="cuda"), "weights": {}, "versions": {}},
    ],
    ids=str,
)
def test_a_manifest_survives_its_file(tmp_path, fields):
    manifest = _manifest(**fields)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_a_manifest_is_written_for_people_to_read(bundle):
    text = (bundle / FILE_NAME).read_text(encoding="utf-8")
    assert '"source": "a folder named é"' in text
    assert text.count("\n") > 50
    assert text.endswith("}\n")


def test_a_whole_bundle_passes_the_check_of_sizes(bundle):
    Manifest.read(bundle).check_sizes(bundle)


def test_files_in_folders_of_the_bundle_are_allowed():
    _manifest(
        graphs=BundledGraphs(model=BundledGraph(file="onnx/model.onnx")),
        files={"onnx/..model..onnx": FileEntry(bytes=1, sha256="")},
    )


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "a/..", "..", "/x", "//host/x", "a\\..\\b", "\\x", "C:x", "C:\\x", "file:x"],
)
def test_a_file_outside_the_bundle_is_refused(bundle, name):
    message = f"^{FILE_NAME} names the file {re.escape(repr(name))}, which is outside the bundle. Do not trust it.$"
    with pytest.raises(BundleError, match=message):
        _manifest(graphs=BundledGraphs(model=BundledGraph(file=name)))
    with pytest.raises(BundleError, match=message):
        _manifest(files={name: FileEntry(bytes=1, sha256="")})
    _edit(bundle, graphs={"model": {"file": name}})
    with pytest.raises(BundleError, match=message):
        Manifest.read(bundle)


def test_a_missing_folder_is_refused_with_how_to_make_it(tmp_path):
    folder = tmp_path / "nothing"
    message = f"there is no folder {folder}. Make a bundle with: edgeformer export --model MODEL --output {folder}"
    with pytest.raises(BundleError, match=f"^{re.escape(message)}$"):
        Manifest.read(folder)


def test_a_file_in_place_of_the_folder_is_refused(bundle):
    with pytest.raises(BundleError, match=r"^there is no folder .*model\.onnx\."):
        Manifest.read(bundle / "model.onnx")


def test_a_folder_without_a_manifest_is_no_bundle(bundle):
    (bundle / FILE_NAME).unlink()
    message = f"{bundle} is not a bundle: it has no {FILE_NAME}. Make one with: edgeformer export"
    with pytest.raises(BundleError, match=f"^{re.escape(message)}$"):
        Manifest.read(bundle)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None])
def test_another_schema_version_is_refused(bundle, version):
    _edit(bundle, schema_version=version)
    message = (
        f"{FILE_NAME} has schema version {version!r}, and this edgeformer reads {SCHEMA_VERSION}. "
        "Export the model again, or use the edgeformer that wrote it.$"
    )
    with pytest.raises(BundleError, match=message):
        Manifest.read(bundle)


def test_a_bundle_with_a_prefill_graph_says_what_to_do(bundle):
    graphs = {"model": {"file": "model.onnx"}, "prefill": {"file": "onnx/model_prefill.onnx", "from_tokens": 8}}
    _edit(bundle, graphs=graphs, plan={"prefill": "int8"})
    with pytest.raises(BundleError, match="a prefill graph, which .* no longer runs.* Export .* without --prefill.$"):
        Manifest.read(bundle)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '"text"', "{}", '{"name": "tiny"}', "\ufeff{}"])
def test_what_is_no_manifest_at_all_is_refused(bundle, text):
    (bundle / FILE_NAME).write_text(text, encoding="utf-8")
    message = (
        "is not a manifest of edgeformer. Export the model again.$|cannot be read: it (is not valid|must hold a) JSON"
    )
    with pytest.raises(BundleError, match=f"{FILE_NAME} ({message})"):
        Manifest.read(bundle)


def test_a_manifest_that_is_not_text_is_refused(bundle):
    (bundle / FILE_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BundleError, match=rf"{FILE_NAME} cannot be read: it is not UTF-8 \(.* at byte 0\)"):
        Manifest.read(bundle)


def test_a_manifest_cut_short_is_refused(bundle):
    path = bundle / FILE_NAME
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BundleError, match=f"{FILE_NAME} cannot be read: it is not valid JSON"):
        Manifest.read(bundle)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "blue"}, "colour is not a field of Manifest; it has schema_version, task, name, "),
        (
            {"plan": {"precision": "fp8"}},
            "plan.precision is 'fp8'; it must be one of 'fp32', 'fp16', 'bf16', 'int8', 'int4'.",
        ),
        ({"name": 3}, "name is 3; it must be of type str."),
        ({"files": []}, "files is []; it must be an object."),
        ({"files": {"model.onnx": {"bytes": 1}}}, "files.model.onnx.sha256 is missing; FileEntry requires it."),
        ({"files": {"a": {"bytes": "1", "sha256": ""}}}, "files.a.bytes is '1'; it must be of type int."),
        ({"tokens": {"eos": 2}}, "tokens.eos is 2; it must be a list."),
        ({"tokens": {"eos": [2, "3"]}}, "tokens.eos[1] is '3'; it must be of type int."),
        (
            {"provenance": {"source": "a", "random_weights": "7"}},
            "provenance.random_weights is '7'; it must be of type int.",
        ),
        ({"parity": []}, "parity is []; it must be an object."),
        ({"vocab_size": None}, "vocab_size is None; it must be of type int."),
        (
            {"provenance": {"source": "a", "backend": "pigeon"}},
            "provenance.backend is 'pigeon'; it must be one of 'transformers'.",
        ),
        (
            {"model": {}},
            "model is {}; it must be an object of kind "
            "['decoder', 'dual', 'encoder', 'naflex_vision', 'picture_encoder', 'picture_text', 'seq2seq', "
            "'sound_text', 'vision'].",
        ),
        ({"model": {"kind": "decoder"}}, "a DecoderConfig needs blocks: a list of {repeat: number, block: {…}}."),
    ],
)
def test_a_damaged_manifest_is_refused_with_the_field(bundle, changes, message):
    _edit(bundle, **changes)
    with pytest.raises(BundleError, match=f"{FILE_NAME} is damaged: {re.escape(message)}.*Export the model again\\.$"):
        Manifest.read(bundle)


def test_a_manifest_without_a_field_is_refused(bundle):
    path = bundle / FILE_NAME
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["plan"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(
        BundleError, match=r"is damaged: plan is missing; Manifest requires it\. Export the model again\.$"
    ):
        Manifest.read(bundle)


def test_a_missing_file_is_named(bundle):
    (bundle / "tokenizer.json").unlink()
    message = f"the bundle {bundle} is damaged: tokenizer.json is missing. Copy or export it again."
    with pytest.raises(BundleError, match=f"^{re.escape(message)}$"):
        Manifest.read(bundle).check_sizes(bundle)


def test_a_truncated_file_is_named_with_both_sizes(bundle):
    (bundle / "model.onnx.data").write_bytes(b"\x00" * 1234)
    message = (
        f"the bundle {bundle} is damaged: model.onnx.data has 1,234 bytes instead of 4,096. Copy or export it again."
    )
    with pytest.raises(BundleError, match=f"^{re.escape(message)}$"):
        Manifest.read(bundle).check_sizes(bundle)


def test_every_damaged_file_is_named_at_once(bundle):
    (bundle / "model.onnx").unlink()
    (bundle / "model.onnx").mkdir()
    (bundle / "tokenizer.json").write_bytes(b"")
    with pytest.raises(
        BundleError, match=r"damaged: model\.onnx is missing; tokenizer\.json has 0 bytes instead of 4\. "
    ):
        Manifest.read(bundle).check_sizes(bundle)


def test_sizes_tell_nothing_of_contents(bundle):
    # Negative control: the check is of sizes only, as it says; contents are the verifier's to check.
    (bundle / "tokenizer.json").write_bytes(b"abcd")
    Manifest.read(bundle).check_sizes(bundle)
