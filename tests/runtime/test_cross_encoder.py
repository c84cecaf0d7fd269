"""Scores of pairs beside sentence-transformers' CrossEncoder."""

import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sentence_transformers import CrossEncoder
from test_encoder import SIZES, write_tokenizer

from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load

QUERY = "w9 w8 w7"
DOCUMENTS = ["w20 w21 w22", "w9 w8 w7", "w30", " ".join(f"w{5 + number % 50}" for number in range(60)), "w41 w42  w43 "]
PAIRS = [(QUERY, document) for document in DOCUMENTS]
CLOSE = 1e-5


@pytest.fixture(scope="module")
def folders(make_model):
    """Models of one label and of three."""

    def make(labels):
        folder = make_model("bert", 20 + labels, auto="AutoModelForSequenceClassification", num_labels=labels, **SIZES)
        write_tokenizer(folder)
        return folder

    return {"one": make(1), "three": make(3)}


def said(folder, place, **fields):
    """Copy a folder, with fields in its config.json or in the file of the library."""
    where = fields.pop("where", "config.json")
    shutil.copytree(folder, place)
    file = place / where
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(content | fields))
    return place


IDENTITY = "torch.nn.modules.linear.Identity"
SAID = {
    "one": ("one", {}),
    "three": ("three", {}),
    "old": ("one", {"sbert_ce_default_activation_function": IDENTITY}),
    "new": ("one", {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}}),
    "three-sigmoid": ("three", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}),
    "file": ("one", {"where": "config_sentence_transformers.json", "activation_fn": IDENTITY}),
    "saved": ("one", {}),
    "strange": ("one", {"sentence_transformers": {"activation_fn": "mine.Function"}}),
    "short": ("one", {"where": "tokenizer_config.json", "model_max_length": 9}),
}


@pytest.mark.parametrize("name", SAID)
def test_scores_are_those_of_the_library(folders, tmp_path, name):
    kind, fields = SAID[name]
    folder = said(folders[kind], tmp_path / "model", **fields)
    theirs = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    if name == "saved":
        theirs.activation_fn = torch.nn.Identity()
        theirs.save(str(tmp_path / "saved"))
        folder = tmp_path / "saved"
    ours = load(export_model(folder, tmp_path / "bundle", verify=None).path)
    expected = theirs.predict(PAIRS)
    found = ours.score(PAIRS, batch_size=2)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    np.testing.assert_allclose(ours.score(PAIRS[0]), expected[0], atol=CLOSE)
    if kind == "three":
        with pytest.raises(RequestError, match="this model ranks nothing, since it does not give one score"):
            ours.rank(QUERY, DOCUMENTS)
        return
    ranking = theirs.rank(QUERY, DOCUMENTS, top_k=3)
    assert [each.index for each in ours.rank(QUERY, DOCUMENTS, top_k=3)] == [each["corpus_id"] for each in ranking]
    assert [each.text for each in ours.rank(QUERY, DOCUMENTS)][:3] == [DOCUMENTS[each["corpus_id"]] for each in ranking]


def test_a_function_that_is_not_here_is_refused(folders, tmp_path):
    fields = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    with pytest.raises(ConfigError, match=r"the scores of model go through 'torch\.nn.*Tanh'; edgeformer has Identity"):
        export_model(said(folders["one"], tmp_path / "model", **fields), tmp_path / "bundle", verify=None)


@pytest.fixture(scope="module")
def ours(folders, tmp_path_factory):
    return load(export_model(folders["one"], tmp_path_factory.mktemp("cross") / "bundle", verify=None).path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.score("w9"), "'w9' .*is no pair; give a tuple of two texts"),
        (lambda model: model.score([("w9", "w8"), "w7"]), "'w7' .*is no pair"),
        (lambda model: model.score(PAIRS, truncate=False), "the text has .* tokens"),
        (lambda model: model.rank(QUERY, "w9"), "documents is 'w9' .*; it must be a list of texts"),
        (lambda model: model.rank(QUERY, DOCUMENTS, top_k=0), "top_k is 0; it must be at least 1"),
        (lambda model: model.spans("w9"), "this model labels no tokens"),
    ],
)
def test_what_is_no_pair_is_refused(ours, call, message):
    with pytest.raises(RequestError, match=message):
        call(ours)


def test_the_order_of_a_pair_counts(ours):
    assert abs(ours.score((QUERY, "w30")) - ours.score(("w30", QUERY))) > 10 * CLOSE


def test_commands_score_and_rank(ours):
    best = ours.rank(QUERY, DOCUMENTS)

    def run(*arguments, **options):
        result = CliRunner().invoke(cli, list(map(str, arguments)), **options)
        assert result.exit_code == 0, result.output
        return result.stdout

    rows = json.loads(run("rank", ours.folder, QUERY, *DOCUMENTS, "--top-k", 2, "--json"))
    assert [(row["index"], row["text"]) for row in rows] == [(each.index, each.text) for each in best[:2]]
    lines = run("rank", ours.folder, QUERY, input="w20 w21 w22\n\nw30\n").splitlines()
    assert len(lines) == 3
    assert f"{best[0].score:.3f}" in run("rank", ours.folder, QUERY, *DOCUMENTS)
    assert float(run("score", ours.folder, *PAIRS[0])) == pytest.approx(float(ours.score(PAIRS[0])), abs=1e-5)
    assert json.loads(run("score", ours.folder, *PAIRS[0], "--json")) == pytest.approx(float(ours.score(PAIRS[0])))
