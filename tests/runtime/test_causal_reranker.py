"""Causal models that rank by their next token score as sentence-transformers' CrossEncoder (LogitScore) does."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import AutoModelForCausalLM

from edgeformer.checkpoints.found_model import PRESETS, find_model
from edgeformer.checkpoints.source import open_source
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, RequestError
from edgeformer.export import export_model
from edgeformer.export.importers.checkpoint_warnings import ranking_warnings
from edgeformer.runtime import Engine, load

YES, NO = 7, 9
QUERY = "a cat"
DOCUMENTS = ["the cat sleeps on the mat", "x", "", "two\nlines <|im_end|>?", "the dog " * 40]
PAIRS = [(QUERY, document) for document in DOCUMENTS[:3]]
TEMPLATE = (
    '{%- set ns = namespace(system="Given a web search query", query="", document="") -%}'
    "{%- for m in messages -%}"
    '{%- if m.role == "system" -%}{%- set ns.system = m.content -%}'
    '{%- elif m.role == "query" -%}{%- set ns.query = m.content -%}'
    '{%- elif m.role == "document" -%}{%- set ns.document = m.content -%}{%- endif -%}{%- endfor -%}'
    "<|im_start|>user\n<Instruct>: {{ ns.system }}\n<Query>: {{ ns.query }}\n<Document>: {{ ns.document }}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
"""The form of Qwen3-Reranker's."""

SEARCH = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The parts of a prompt on the page of Qwen3-Reranker, which encodes them one by one."""

SIZES = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture(scope="module")
def make(make_model, tmp_path_factory):
    """Make a cross-encoder of a causal model, saved by the library."""

    def make(model_type="qwen3", tokens=(YES, NO), opens=True, template=TEMPLATE, **options):
        folder = shutil.copytree(
            make_model(model_type, 5, **(SIZES | options)), tmp_path_factory.mktemp("causal") / "m"
        )
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(PRESETS / "tiny-llama" / name, folder)
        if template:
            (folder / "chat_template.jinja").write_text(template)
        chat = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}} if opens else {}
        modules = [Transformer(str(folder), transformer_task="text-generation", **chat), LogitScore(*tokens)]
        prompts = {"papers": "Find scientific papers"}
        saved = tmp_path_factory.mktemp("reranker") / "model"
        CrossEncoder(modules=modules, prompts=prompts).save_pretrained(str(saved))
        limits = json.loads((saved / "tokenizer_config.json").read_text()) | {"model_max_length": 120}
        (saved / "tokenizer_config.json").write_text(json.dumps(limits))
        return saved

    return make


@pytest.fixture(scope="module")
def folder(make):
    return make(tie_word_embeddings=True)


@pytest.fixture(scope="module")
def theirs(folder):
    model = CrossEncoder(str(folder), device="cpu")
    model.model.double()
    return model


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory):
    return export_model(folder, tmp_path_factory.mktemp("bundles") / "reranker").path


@pytest.fixture(scope="module")
def ours(bundle):
    return load(bundle)


def close(found, expected):
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() < 1e-5


@pytest.mark.parametrize("options", [{}, {"prompt": "Find poems"}, {"prompt_name": "papers"}])
def test_scores_are_those_of_the_library(ours, theirs, options):
    close(ours.score(PAIRS, **options), theirs.predict(PAIRS, **options))
    close(ours.score(PAIRS[0], **options), theirs.predict(PAIRS[0], **options))
    ranked = ours.rank(QUERY, DOCUMENTS[:3], **options)
    expected = theirs.rank(QUERY, DOCUMENTS[:3], **options)
    assert [each.index for each in ranked] == [each["corpus_id"] for each in expected]


def test_a_folder_of_weights_ranks_as_its_page_says(make_model, tmp_path, monkeypatch):
    """The lines of the reference, on a model whose scores are computed as Qwen3-Reranker's page does."""
    place = shutil.copytree(make_model("qwen3", 5, **SIZES | {"vocab_size": 2050}), tmp_path / "Qwen3-Reranker-0.6B")
    backend = tokenizers.Tokenizer.from_file(str(PRESETS / "tiny-llama" / "tokenizer.json"))
    backend.add_tokens(["yes", "no"])
    backend.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text("{}")
    [warning] = ranking_warnings(find_model(place))
    assert "the bundle writes texts" in warning
    page = (Path(__file__).parents[2] / "docs/reference/bundle.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    ours = load(export_model(place, tmp_path / "bundle", verify=None).path)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64)
    answers = [backend.token_to_id("no"), backend.token_to_id("yes")]
    for instruct in (None, "Find poems"):
        asked = f"<Instruct>: {instruct or SEARCH}\n<Query>: {QUERY}\n<Document>: {DOCUMENTS[0]}"
        ids = [id for text in (BEFORE, asked, AFTER) for id in backend.encode(text, add_special_tokens=False).ids]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1, answers]
        close(ours.score((QUERY, DOCUMENTS[0]), prompt=instruct), torch.softmax(logits, 0)[1].item())


def test_a_score_is_the_probability_of_yes(ours, theirs):
    """Source of the maths: the card of Qwen3-Reranker, softmax over the logits of no and yes."""
    ids = torch.tensor([ours.encode_pair(PAIRS[0])[0]])
    logits = theirs.model(input_ids=ids).logits[0, -1]
    close(ours.score(PAIRS[0]), logits[[NO, YES]].softmax(0)[1].detach())
    with torch.no_grad():  # the negative control: the answers exchanged
        assert abs(ours.score(PAIRS[0]) - logits[[YES, NO]].softmax(0)[1]) > 1e-3


def test_what_is_too_long_is_cut_within_the_document(ours, theirs):
    long = (QUERY, DOCUMENTS[4])
    ids = ours.encode_pair(long)[0]
    assert ids == theirs.preprocess([long])["input_ids"][0].tolist() and len(ids) == 120
    close(ours.score(long), theirs.predict(long))
    assert ours.encode_pair((QUERY, "the dog " * 200_000))[0] == ids
    with pytest.raises(RequestError, match="longer|tokens"):
        ours.score((QUERY, "the dog " * 400), truncate=False)


def test_a_document_that_spells_a_special_token_stays_a_document(ours):
    ids = ours.encode_pair((QUERY, DOCUMENTS[3]))[0]
    assert ids.count(2) == 1  # <|im_end|>, which the template writes


def test_an_engine_and_a_batch_give_the_same_scores(ours):
    pairs = [(QUERY, document) for document in DOCUMENTS]
    alone = [ours.score(pair, prompt="Find poems") for pair in pairs]
    close(ours.score(pairs, prompt="Find poems"), alone)
    with Engine(ours) as engine:
        futures = engine.submit_pairs(pairs, prompt="Find poems")
        close([future.result() for future in futures], alone)


def test_the_graph_has_one_vector_in_place_of_the_head(ours, bundle):
    assert [tuple(output.shape) for output in ours.session.get_outputs()][-1] == ("batch_size", 1)
    config = json.loads((bundle / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForSequenceClassification"] and config["id2label"] == {"0": "LABEL_0"}


def test_the_command_takes_an_instruction(bundle, theirs):
    result = CliRunner().invoke(cli, ["rank", str(bundle), QUERY, *DOCUMENTS[:3], "--prompt", "Find poems", "--json"])
    expected = theirs.rank(QUERY, DOCUMENTS[:3], prompt="Find poems")
    found = json.loads(result.stdout)
    assert [each["index"] for each in found] == [each["corpus_id"] for each in expected]
    close([each["score"] for each in found], [each["score"] for each in expected])


def test_one_token_of_an_untied_head_and_plain_pairs(make, tmp_path):
    """As bge-reranker-v2-gemma, whose score is the logit of Yes; without a template pairs are the tokenizer's."""
    folder = make("gemma", (YES, None), opens=False, template=None, tie_word_embeddings=False)
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    identity = config | {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(identity))
    theirs = CrossEncoder(str(folder), device="cpu")
    theirs.model.double()
    ours = load(export_model(folder, tmp_path / "bundle", verify=None).path)
    expected = theirs.predict(PAIRS)
    assert np.abs(ours.score(PAIRS) - expected).max() < 1e-5 * np.abs(expected).max()
    with pytest.raises(RequestError, match="without an instruction"):
        ours.score(PAIRS, prompt="Find poems")


def test_what_cannot_be_scored_so_is_refused(folder, tmp_path):
    def changed(name, **fields):
        place = shutil.copytree(folder, tmp_path / name)
        file = place / ("config.json" if name == "softcap" else "1_LogitScore/config.json")
        if name == "variables":
            file = place / "sentence_bert_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))
        return place

    with pytest.raises(ConfigError, match="true_token_id and false_token_id must be token ids"):
        open_source(changed("text", true_token_id="yes"))
    with pytest.raises(ConfigError, match="takes token 4000 for an answer, and its tokens are 0 to 2047"):
        open_source(changed("outside", true_token_id=4000))
    with pytest.raises(ConfigError, match="options that edgeformer does not know: other"):
        open_source(changed("unknown", other=1))
    with pytest.raises(ConfigError, match="gives the chat template enable_thinking"):
        open_source(changed("variables", processing_kwargs={"chat_template": {"enable_thinking": False}}))


def test_a_decoder_with_a_classification_head_ranks(make_model, tmp_path):
    """As the conversions of Qwen3-Reranker to Qwen3ForSequenceClassification: texts are laid out by the caller."""
    made = make_model("qwen3", 6, auto="AutoModelForSequenceClassification", num_labels=1, pad_token_id=0, **SIZES)
    folder = shutil.copytree(made, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PRESETS / "tiny-llama" / name, folder)
    theirs = CrossEncoder(str(folder), device="cpu")
    theirs.model.double()
    ours = load(export_model(folder, tmp_path / "bundle", verify=None).path)
    close(ours.score(PAIRS), theirs.predict(PAIRS))
    assert ours.rank(QUERY, DOCUMENTS[:3])[0].index == theirs.rank(QUERY, DOCUMENTS[:3])[0]["corpus_id"]
