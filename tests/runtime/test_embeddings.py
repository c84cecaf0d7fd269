"""Sparse vectors and vectors of tokens: those of sentence-transformers and of BGE-M3's formulas, in float64."""

import json
import string

import numpy as np
import pytest
import sentence_transformers
import tokenizers
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from test_encoder import SIZES, write_tokenizer

from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load

CLOSE = 2e-5
TEXTS = ["w9 w8 w7 . w7", "w20", "w21 w9 , w22 w23 w24 w25 w26 w27 w28"]
QUERY = "w9 w21"
LONG = " ".join(f"w{5 + place}" for place in range(40))


def tokenizer_of(folder, more=()):
    """Write a tokenizer of whole words, some of which are punctuation or marks; return the ids of the further ones."""
    write_tokenizer(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    data = json.loads(backend.to_str())
    vocabulary = data["model"]["vocab"]
    for place, word in enumerate(more):  # in the place of words that no text has
        vocabulary[word] = vocabulary.pop(f"w{50 + place}")
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return vocabulary


def random_model(folder, kind, seed=0, **options):
    torch.manual_seed(seed)
    model = kind(kind.config_class(**{**SIZES, "max_position_embeddings": 48}, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def write_modules(folder, *modules):
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for index, (kind, options, tensors) in enumerate(modules, 1):
        place = folder / f"{index}_{kind.rpartition('.')[2]}"
        place.mkdir()
        listed.append({"idx": index, "name": str(index), "path": place.name, "type": kind})
        (place / "config.json").write_text(json.dumps(options))
        if tensors:
            save_file(tensors, place / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))


def dense(seed=1, size=16):
    torch.manual_seed(seed)
    options = {"in_features": 32, "out_features": size, "bias": False}
    options |= {"activation_function": "torch.nn.modules.linear.Identity"}
    return "pylate.models.Dense.Dense", options, {"linear.weight": torch.randn(size, 32)}


def pylate(folder):
    """A folder as PyLate 3 writes it: prefixes that are tokens, expansion of queries, a list of skipped words."""
    random_model(folder, transformers.BertModel)
    tokenizer_of(folder, (".", ",", "[Q] ", "[D] "))
    write_modules(folder, dense())
    said = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 8,
            "document_length": 10, "attend_to_expansion_tokens": False, "do_query_expansion": True,
            "skiplist_words": list(string.punctuation), "similarity_fn_name": "MaxSim"}  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


def attending(folder):
    """A folder of PyLate whose queries attend to the tokens behind them."""
    pylate(folder)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attend_to_expansion_tokens": True}))


def native(folder):
    """A folder as sentence-transformers 6 writes it, with two Dense modules and prompts that are texts."""
    random_model(folder, transformers.BertModel, seed=2)
    tokenizer_of(folder, (".", ","))
    base = "sentence_transformers.base.modules"
    layers = []
    for _, options, tensors in (dense(3, 32), dense(4, 12)):
        layers.append((f"{base}.dense.Dense", options | {"module_input_name": "token_embeddings"}, tensors))
    mask = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    write_modules(
        folder, *layers, (mask, {"skiplist_words": ["."], "skiplist_tasks": ["query", "document"]}, {}),
        (f"{base}.normalize.Normalize", {"module_input_name": "token_embeddings"}, {}),
    )  # fmt: skip
    said = {"model_type": "MultiVectorEncoder", "prompts": {"query": "w30 ", "document": "w31 "},
            "similarity_fn_name": "maxsim"}  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


def stanford(folder):
    """A folder of Stanford's ColBERT: `linear.weight` beside the encoder, its settings in artifact.metadata."""
    random_model(folder, transformers.BertModel, seed=5)
    tokenizer_of(folder, (".", ",", "[unused0]", "[unused1]"))
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(6)
    save_file(tensors | {"linear.weight": torch.randn(16, 32)}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    said = {"dim": 16, "query_maxlen": 9, "doc_maxlen": 12, "mask_punctuation": True, "attend_to_mask_tokens": False}
    (folder / "artifact.metadata").write_text(json.dumps(said))


def rotary(folder):
    """A folder of PyLate over ModernBERT, where tokens that are not attended to have positions, too."""
    options = {
        "pad_token_id": 0,
        "global_attn_every_n_layers": 2,
        "local_attention": 32,
    }  # no token behind a query is further from it
    random_model(folder, transformers.ModernBertModel, seed=10, **options)
    tokenizer_of(folder, (".", ",", "[Q] ", "[D] "))
    write_modules(folder, dense())
    said = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


COLBERTS = {"rotary": rotary, "pylate": pylate, "attending": attending, "native": native, "stanford": stanford}


@pytest.fixture(scope="module")
def colberts(tmp_path_factory):
    """By name: the bundle, and the library's own model in float64."""
    made = {}
    for name, write in COLBERTS.items():
        folder, bundle = tmp_path_factory.mktemp(name), tmp_path_factory.mktemp("bundles") / name
        write(folder)
        verify = "quick" if name in ("pylate", "rotary") else None
        made[name] = (
            load(export_model(folder, bundle, verify=verify).path),
            sentence_transformers.MultiVectorEncoder(str(folder), device="cpu").double(),
        )
    return made


@pytest.mark.parametrize("name", COLBERTS)
def test_vectors_of_tokens_are_those_of_the_library(colberts, name):
    ours, theirs = colberts[name]
    for texts, query in (([*TEXTS, LONG], False), ([QUERY, TEXTS[0], LONG], True)):
        expected = (theirs.encode_query if query else theirs.encode_document)(texts, convert_to_numpy=True)
        found = ours.embeddings(texts, query=query)
        assert ours.forms == ["tokens"]
        for each, right in zip(found, expected, strict=True):
            assert each.dense is None and each.sparse is None
            assert each.tokens.shape == right.shape
            assert np.abs(each.tokens - right).max() < CLOSE
    # Negative control: a document is not read as a query is.
    assert (
        ours.embeddings(QUERY).tokens.shape != ours.embeddings(QUERY, query=True).tokens.shape
        or np.abs(ours.embeddings(QUERY).tokens - ours.embeddings(QUERY, query=True).tokens).max() > 100 * CLOSE
    )


@pytest.mark.parametrize("name", COLBERTS)
def test_documents_are_ranked_by_max_sim(colberts, name):
    ours, theirs = colberts[name]
    expected = theirs.similarity(theirs.encode_query([QUERY]), theirs.encode_document(TEXTS))[0].numpy()
    ranked = ours.rank(QUERY, TEXTS, top_k=2)
    assert [each.index for each in ranked] == np.argsort(-expected)[:2].tolist()
    assert [each.score for each in ranked] == pytest.approx(np.sort(expected)[::-1][:2].tolist(), abs=1e-4)
    assert ours.rank(QUERY, []) == []


def test_a_model_of_token_vectors_gives_no_single_vector(colberts):
    ours, _ = colberts["pylate"]
    with pytest.raises(RequestError, match="no single vector of a text. It makes a vector of every token: embeddings"):
        ours.embed(QUERY)
    with pytest.raises(RequestError, match=r"forms is \['sparse'\].*; this model gives tokens"):
        ours.embeddings(QUERY, forms=["sparse"])


def splade(folder, **pooling):
    random_model(folder, transformers.BertForMaskedLM, seed=7)
    write_tokenizer(folder)
    write_modules(folder, ("sentence_transformers.sparse_encoder.models.SpladePooling", pooling, {}))
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    said = {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    "pooling", [{"pooling_strategy": "max"}, {"pooling_strategy": "sum", "activation_function": "log1p_relu"}]
)
def test_sparse_vectors_are_those_of_the_library(tmp_path, pooling):
    (tmp_path / "model").mkdir()
    splade(tmp_path / "model", **pooling)
    theirs = sentence_transformers.SparseEncoder(str(tmp_path / "model"), device="cpu").double()
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    verify = "quick" if pooling["pooling_strategy"] == "max" else None
    ours = load(export_model(tmp_path / "model", tmp_path / "bundle", verify=verify).path)
    assert ours.forms == ["sparse"]
    found = ours.embeddings(TEXTS)
    for each, right in zip(found, expected, strict=True):
        whole = np.zeros_like(right)
        whole[each.sparse.indices] = each.sparse.values
        assert np.abs(whole - right).max() < CLOSE * np.abs(right).max()
        assert (each.sparse.values > 0).all() and 0 < len(each.sparse.indices) < len(right)
    product = found[0].sparse.dot(found[2].sparse)
    assert product == pytest.approx(float(expected[0] @ expected[2]), rel=1e-4)
    assert ours.sparse_tokens(found[0].sparse, 3) == [
        (token, pytest.approx(value, rel=1e-4)) for token, value in theirs.decode(torch.tensor(expected[0]), top_k=3)
    ]
    assert len(ours.fill_mask("w9 [MASK]")) == 5
    shown = CliRunner().invoke(cli, ["embed", str(tmp_path / "bundle"), "--form", "sparse", "--json", TEXTS[0]])
    assert json.loads(shown.stdout)[0]["indices"] == found[0].sparse.indices.tolist()


@pytest.fixture(scope="module")
def bge(tmp_path_factory):
    """BGE-M3's layout: the layers of two heads are pickles beside an XLM-RoBERTa."""
    folder = tmp_path_factory.mktemp("bge")
    model = random_model(folder, transformers.XLMRobertaModel, seed=8, pad_token_id=0, type_vocab_size=1)
    write_tokenizer(folder)
    names = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(names | {"eos_token": "[SEP]"}))
    write_modules(
        folder, ("sentence_transformers.models.Pooling", {"pooling_mode_cls_token": True}, {}),
        ("sentence_transformers.models.Normalize", {}, {}),
    )  # fmt: skip
    torch.manual_seed(9)
    sparse, colbert = torch.nn.Linear(32, 1), torch.nn.Linear(32, 32)
    torch.save(sparse.state_dict(), folder / "sparse_linear.pt")
    torch.save(colbert.state_dict(), folder / "colbert_linear.pt")
    return folder, model.double().eval(), sparse.double(), colbert.double()


def test_three_heads_in_one_run(bge, tmp_path):
    folder, model, sparse, colbert = bge
    ours = load(export_model(folder, tmp_path / "bundle", verify="quick", allow_pickle=True).path)
    assert ours.forms == ["dense", "sparse", "tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, found in zip(TEXTS, ours.embeddings(TEXTS), strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            states = model(ids).last_hidden_state[0]
            vectors = torch.nn.functional.normalize(colbert(states[1:]), dim=-1).numpy()
            weights = torch.relu(sparse(states))[:, 0].tolist()
            first = torch.nn.functional.normalize(states[0], dim=-1).numpy()
        assert np.abs(found.dense - first).max() < CLOSE
        assert found.tokens.shape == vectors.shape and np.abs(found.tokens - vectors).max() < CLOSE
        expected = {}
        for token, weight in zip(ids[0].tolist(), weights, strict=True):
            if token not in (0, 1, 2, 3) and weight > expected.get(token, 0):
                expected[token] = weight
        assert found.sparse.as_dict() == pytest.approx(expected, abs=CLOSE)
    assert np.abs(ours.embed(TEXTS[0]) - ours.embeddings(TEXTS[0], forms=["dense"]).dense).max() < CLOSE
    assert ours.rank(TEXTS[1], TEXTS)[0].index == 1


def test_pickles_of_heads_are_left_out_with_a_warning(bge, tmp_path):
    exported = export_model(bge[0], tmp_path / "bundle", verify=None)
    assert load(exported.path).forms == ["dense"]
    assert any("colbert_linear.pt are pickles" in warning for warning in exported.warnings)


def test_what_cannot_be_exported_is_refused(tmp_path):
    splade(tmp_path, pooling_strategy="mean")
    with pytest.raises(ConfigError, match="pooling_strategy = 'mean'"):
        export_model(tmp_path, tmp_path / "bundle", verify=None)


@pytest.mark.parametrize(
    ("write", "file", "change", "said"),
    [
        (stanford, "artifact.metadata", {"similarity": "l2"}, "artifact.metadata has similarity = 'l2'"),
        (pylate, "config_sentence_transformers.json", {"similarity_fn_name": "xtr"}, "similarity_fn_name = 'xtr'"),
        (pylate, "tokenizer.json", None, "has no tokenizer.json, which says what tokens stand before texts"),
    ],
)
def test_what_would_be_read_otherwise_is_refused(tmp_path, write, file, change, said):
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder)
    open_source(folder)
    path = folder / file
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=said):
        open_source(folder)
