"""The table of forms of graphs: a form that is added to it is written, listed, verified and documented."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeformer.check import check
from edgeformer.cli.main import cli
from edgeformer.errors import BundleError, ParityError
from edgeformer.export import export_model
from edgeformer.export.bundle.writer import weight_files
from edgeformer.export.graph_forms import WRITERS, Writer
from edgeformer.export.parity.report import Check
from edgeformer.export.parity.trials.graph_forms import FORM_TRIALS
from edgeformer.manifest.graph_forms import (
    COPIES,
    EDGEFORMER,
    FORMS,
    GENAI,
    GRAPH,
    OPTIMUM,
    TRANSFORMERS_JS,
    BundledGraph,
    BundledGraphs,
    GraphForm,
)
from edgeformer.manifest.manifest import Manifest

TOY = "onnx/model_toy.onnx"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bundle.md"


@pytest.fixture
def toy(monkeypatch):
    """A form that is a copy of the decode graph: one row in each of the three tables."""

    def write(out):
        shutil.copy(out.folder / GRAPH, out.folder / TOY)
        return BundledGraph(file=TOY)

    def judge(given):
        manifest = given.setup.manifest
        equal = (given.setup.folder / GRAPH).read_bytes() == (
            given.setup.folder / manifest.graphs["toy"].file
        ).read_bytes()
        yield (
            "toy graph, ",
            lambda: [Check(name="same", what="bytes", value=float(not equal), limit=0.0, eager=None, reason="a copy")],
        )

    form = GraphForm(file=TOY, what="copy", written="always", verified="by its bytes", read_by=())
    monkeypatch.setitem(FORMS, "toy", form)
    monkeypatch.setitem(WRITERS, "toy", Writer(lambda job: True, write, beside=True))
    monkeypatch.setitem(FORM_TRIALS, "toy", judge)
    return write


def test_a_form_is_written_listed_and_verified(toy, tmp_path):
    result = export_model("tiny-llama", tmp_path / "bundle")
    manifest = Manifest.read(result.path)
    assert manifest.graphs["toy"] == BundledGraph(file=TOY)
    assert TOY in manifest.graph_files and TOY in manifest.files and TOY in manifest.graph_hashes()
    assert TOY not in manifest.step_graphs and TOY not in manifest.prepacked_graphs
    assert [check.passed for check in result.report.checks if check.name == "toy graph, same"] == [True]


def test_a_form_is_read_by_commands_from_the_table(toy, tmp_path, monkeypatch):
    """`check`, `info` and `optimize`, files for other places and ORT format: no further file knows the forms."""
    monkeypatch.setitem(FORMS, "toy", replace(FORMS["toy"], read_by=(EDGEFORMER,)))
    path = export_model("tiny-llama", tmp_path / "bundle", verify=None).path
    data = json.loads(CliRunner().invoke(cli, ["info", str(path), "--json"]).stdout)
    assert data["graphs"] == {"model": {"file": GRAPH, "opened": True}, "toy": {"file": TOY, "opened": True}}
    monkeypatch.setitem(FORMS, "toy", replace(FORMS["toy"], read_by=(GENAI,)))
    shown = CliRunner().invoke(cli, ["info", str(path)]).stdout
    assert "graphs: model, toy; for other clients: toy" in shown.splitlines()
    assert check(path).verdict("edgeformer") == "loads"
    (path / TOY).unlink()
    assert check(path).verdict("edgeformer") == "does not load"
    mobile = export_model("tiny-llama", tmp_path / "mobile", verify=None, deployment="mobile").path
    assert list(Manifest.read(mobile).graphs) == ["model"], "its row does not say that a bundle in ORT format has it"


PICTURE_FORMS = ("vision_encoder", "audio_encoder", "embed_tokens", "embedding_decoder")


def test_what_a_client_opens_follows_from_the_table():
    graphs = BundledGraphs({name: BundledGraph(file=form.file) for name, form in FORMS.items()})
    opened = {client: list(graphs.read_by(client)) for client in (EDGEFORMER, GENAI, TRANSFORMERS_JS, OPTIMUM)}
    assert opened == {
        EDGEFORMER: [
            "encoder", "text", *PICTURE_FORMS, "embedding_encoder", "mtp", "windowed", "adapters", "alignment",
        ],
        GENAI: ["model", "embedding"],
        TRANSFORMERS_JS: ["encoder", "text", *PICTURE_FORMS, "merged", "joined"],
        OPTIMUM: ["encoder", "merged", "joined"],
    }  # fmt: skip


def test_a_form_has_the_weights_of_another_where_its_row_says_so():
    both = {"model": "onnx/decoder_model.onnx", "alignment": "onnx/alignment.onnx"}
    assert weight_files(both, shared=False) == {"onnx/decoder_model.onnx_data": list(both.values())}
    all_three = both | {"merged": "onnx/merged.onnx"}
    assert weight_files(all_three, shared=False) == {"onnx/merged.onnx_data": list(all_three.values())}
    assert weight_files({"encoder": "a.onnx"} | both, shared=True).keys() == {"onnx/model.onnx_data"}
    assert weight_files({"encoder": "a.onnx"} | both, shared=False).keys() == {
        "a.onnx_data", "onnx/decoder_model.onnx_data",
    }  # fmt: skip


def test_a_wrong_graph_of_a_form_fails_the_export(toy, tmp_path, monkeypatch):
    def wrong(out):
        entry = toy(out)
        (out.folder / TOY).write_bytes(b"")
        return entry

    monkeypatch.setitem(WRITERS, "toy", replace(WRITERS["toy"], make=wrong))
    with pytest.raises(ParityError, match="toy graph, same"):
        export_model("tiny-llama", tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


def test_a_form_that_does_not_exist_is_refused(toy, tmp_path, monkeypatch):
    path = export_model("tiny-llama", tmp_path / "bundle", verify=None).path
    monkeypatch.delitem(FORMS, "toy")
    with pytest.raises(BundleError, match="graphs is .*toy.*; it must be an object with any of encoder, text, model"):
        Manifest.read(path)


def test_every_form_has_a_writer():
    assert WRITERS.keys() == FORMS.keys()
    assert FORM_TRIALS.keys() <= FORMS.keys()
    assert {form.replaces for form in FORMS.values()} <= {None, *FORMS}


def test_the_page_of_the_bundle_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    for name, form in (FORMS | COPIES).items():
        row = f"| {name} | {form.what} | {form.written} | {form.verified} | {', '.join(form.read_by) or '–'} |"
        assert row in text, row
    assert {field.name for field in fields(GraphForm)} >= {"file", "what", "written", "verified", "read_by"}
