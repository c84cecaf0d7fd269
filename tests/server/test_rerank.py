"""Documents that a cross-encoder ranks over HTTP, as clients of Jina, Cohere and vLLM ask for it."""

import json
import shutil

import numpy as np
import pytest
import torch
from running_server import running
from safetensors.torch import save_file

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.export import export_model
from edgeformer.runtime import Engine, load

QUERY = "Where does the cat sleep?"
DOCUMENTS = ["The dog barks.", "The cat sleeps in the sun.", "Birds sing. " * 40, "A cat."]


@pytest.fixture(scope="module")
def bundles(make_model, tmp_path_factory):
    """A cross-encoder with the tokenizer of tiny-embed, and tiny-embed itself."""
    config = json.loads((PRESETS / "tiny-embed" / "config.json").read_text())
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": config["vocab_size"], "max_position_embeddings": 48}
    folder = make_model("bert", 21, auto="AutoModelForSequenceClassification", num_labels=1, **sizes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PRESETS / "tiny-embed" / name, folder / name)
    place = tmp_path_factory.mktemp("rerank")
    colbert = make_model("bert", 22, auto="AutoModel", **sizes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PRESETS / "tiny-embed" / name, colbert / name)
    (colbert / "1_Dense").mkdir()
    save_file({"linear.weight": torch.randn(16, 32)}, colbert / "1_Dense" / "model.safetensors")
    activation = "torch.nn.modules.linear.Identity"
    layer = {"in_features": 32, "out_features": 16, "bias": False, "activation_function": activation}
    (colbert / "1_Dense" / "config.json").write_text(json.dumps(layer))
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    (colbert / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in kinds.items()]))
    models = {"ranker": folder, "tiny-embed": "tiny-embed", "colbert": colbert}
    return {name: export_model(model, place / name, verify=None).path for name, model in models.items()}


def test_documents_are_ranked_by_their_tokens(server, bundles, monkeypatch):
    ours = load(bundles["colbert"])
    body = {"model": "colbert", "query": QUERY, "documents": [*DOCUMENTS[:2], DOCUMENTS[3]], "top_n": 2}
    answer = server.post("/v1/rerank", body).json()
    ran = []
    monkeypatch.setattr(
        ours, "run_encoded", lambda *given: ran.append(given[0]) or type(ours).run_encoded(ours, *given)
    )
    expected = ours.rank(QUERY, body["documents"], top_k=2)
    assert answer["usage"]["prompt_tokens"] == sum(len(ids) for batch in ran for ids, _ in batch)
    assert [each["index"] for each in answer["results"]] == [each.index for each in expected]
    np.testing.assert_allclose([each["relevance_score"] for each in answer["results"]], [x.score for x in expected])
    refused = server.post("/v1/embeddings", {"model": "colbert", "input": QUERY})
    assert refused.status_code == 400
    assert "gives no single vector of a text" in refused.json()["error"]["message"]


@pytest.fixture(scope="module")
def server(bundles):
    with running(list(bundles.values())) as server:
        yield server


@pytest.fixture(scope="module")
def alone(bundles):
    return load(bundles["ranker"], "cpu", 1)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_in_the_order_of_the_model(server, alone, path):
    answer = server.post(path, {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}).json()
    expected = alone.rank(QUERY, DOCUMENTS)
    assert [each["index"] for each in answer["results"]] == [each.index for each in expected]
    scores = [each["relevance_score"] for each in answer["results"]]
    np.testing.assert_allclose(scores, [each.score for each in expected], atol=1e-6)
    assert [each["document"]["text"] for each in answer["results"]] == [each.text for each in expected]
    tokens = sum(len(alone.encode_pair((QUERY, text))[0]) for text in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["model"] == "ranker"
    assert len(set(scores)) == len(DOCUMENTS)  # an order that means something


def test_documents_may_be_objects_and_fewer_may_come_back(server, alone):
    documents = [{"text": text} for text in DOCUMENTS]
    body = {"model": "ranker", "query": QUERY, "documents": documents, "top_n": 2, "return_documents": False}
    answer = server.post("/v1/rerank", body).json()
    assert [each["index"] for each in answer["results"]] == [each.index for each in alone.rank(QUERY, DOCUMENTS)[:2]]
    assert all(set(each) == {"index", "relevance_score"} for each in answer["results"])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": "tiny-embed"}, "model", "is not for this route; it answers at /v1/embeddings"),
        ({"documents": []}, "documents", "documents has 0 texts; 1 to 2048 are allowed"),
        ({"documents": ["x"] * 2049}, "documents", "documents has 2049 texts"),
        ({"documents": [5]}, "documents.0", "documents.0"),
        ({"documents": "x"}, "documents", "documents"),
        ({"query": None}, "query", "query"),
        ({"top_n": 0}, "top_n", "top_n"),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc", "'max_chunks_per_doc' is no field of this request"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_its_field(server, fields, param, message):
    answer = server.post("/v1/rerank", {"model": "ranker", "query": QUERY, "documents": DOCUMENTS} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_cross_encoder_names_its_route(server):
    answer = server.post("/v1/completions", {"model": "ranker", "prompt": "x"})
    assert "it answers at /v1/rerank" in answer.json()["error"]["message"]


def test_pairs_and_texts_of_one_engine_do_not_mix(bundles, alone):
    pairs = [(QUERY, text) for text in DOCUMENTS]
    with Engine(load(bundles["ranker"], "cpu", 1)) as engine:
        scores, vectors = engine.submit_pairs(pairs), engine.submit_texts(DOCUMENTS)
        found = np.stack([each.result(60) for each in scores])
        np.testing.assert_allclose(np.stack([each.result(60) for each in vectors]), alone.embed(DOCUMENTS), atol=1e-5)
    np.testing.assert_allclose(found, alone.score(pairs), atol=1e-5)
