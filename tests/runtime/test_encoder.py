"""What encoders make of texts: vectors, labels, words for masks; the oracle is transformers, and its pipelines."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import Encoder, load
from edgeformer.runtime.tasks.encoders import text_encoder
from edgeformer.runtime.tasks.encoders.text_encoder import BATCH_TOKENS, batches

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, MASK = 0, 4
VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 24,
}  # fmt: skip
LABELS = ("bad", "so-so", "good")
MODELS = {
    "masked": ("BertForMaskedLM", {}),
    "text": ("BertForSequenceClassification", {"id2label": dict(enumerate(LABELS))}),
    "score": ("BertForSequenceClassification", {"num_labels": 1}),
    "several": (
        "BertForSequenceClassification",
        {
            "id2label": dict(enumerate(LABELS)),
            "problem_type": "multi_label_classification",
        },
    ),
    "numbers": ("BertForSequenceClassification", {"id2label": dict(enumerate(LABELS)), "problem_type": "regression"}),
    "number": ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "token": ("BertForTokenClassification", {"id2label": {0: "O", 1: "NAME"}}),
    "sentence": ("BertModel", {}),
}
TEXTS = ["w9 w8 w7 w6 w5", "w20", "w30 w31 w32 w33 w34 w35 w36 w37 w38", "w21 w22", "w40 w41 w42 w43 w44"]
PAIRS = [("w9 w8 w7", "w20 w21 w22 w23 w24"), ("w30", "w31"), ("w50 w51 w52 w53 w54 w55", "w7")]
CLOSE = 1e-5


def write_tokenizer(folder):
    """As that of BERT, but for whole words: w7, w8…"""
    vocabulary = {token: id for id, token in enumerate(SPECIAL)} | {f"w{id}": id for id in range(5, VOCABULARY)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    # transformers' way of saying that the file is all there is.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs} | names
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def models(make_model, tmp_path_factory):
    """By name: the bundle (`ours`), and model and tokenizer of transformers."""
    made = {}
    for seed, (name, (kind, options)) in enumerate(MODELS.items()):
        folder = make_model("bert", seed, auto=AUTO[kind], **SIZES, **options)
        write_tokenizer(folder)
        pooling = {"pooling": "first", "normalize": True} if name == "sentence" else {}
        bundle = export_model(folder, tmp_path_factory.mktemp("bundles") / name, verify=None, **pooling).path
        theirs = getattr(transformers, kind).from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        made[name] = SimpleNamespace(ours=load(bundle), theirs=theirs.eval(), tokenizer=tokenizer, bundle=bundle)
    return made


AUTO = {
    "BertForMaskedLM": "AutoModelForMaskedLM",
    "BertForSequenceClassification": "AutoModelForSequenceClassification",
    "BertForTokenClassification": "AutoModelForTokenClassification",
    "BertModel": "AutoModel",
}


def states(model, *texts):
    """The last states of one text or pair, without padding [S, E]."""
    inputs = model.tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        return model.theirs.base_model(**inputs).last_hidden_state[0].numpy()


def test_the_texts_are_those_that_transformers_reads(models):
    model = models["masked"]
    assert isinstance(model.ours, Encoder)
    for text in TEXTS:
        assert model.ours.encode(text) == model.tokenizer(text).input_ids
    for pair in PAIRS:
        inputs = model.tokenizer(*pair)
        assert model.ours.tokenizer.encode_pair(*pair) == (inputs.input_ids, inputs.token_type_ids)


# Vectors


def test_a_vector_is_the_mean_of_the_last_states(models):
    for name in ("masked", "text", "token"):
        vectors = models[name].ours.embed(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (len(TEXTS), 32)
        for vector, text in zip(vectors, TEXTS, strict=True):
            assert np.abs(vector - states(models[name], text).mean(0)).max() < CLOSE


def test_a_sentence_encoder_pools_as_it_was_made_to(models):
    vectors = models["sentence"].ours.embed(TEXTS)
    for vector, text in zip(vectors, TEXTS, strict=True):
        first = states(models["sentence"], text)[0]
        assert np.abs(vector - first / np.linalg.norm(first)).max() < CLOSE


@pytest.mark.parametrize("name", ["masked", "sentence"])
def test_vectors_are_in_the_order_of_the_texts(models, name):
    ours = models[name].ours
    alone = np.stack([ours.embed(text) for text in TEXTS])
    assert alone.shape == (len(TEXTS), 32)
    for batch_size in (1, 2, 3, 32):
        assert np.abs(ours.embed(TEXTS, batch_size=batch_size) - alone).max() <= 1e-6
        backwards = ours.embed(TEXTS[::-1], batch_size=batch_size)
        assert np.abs(backwards[::-1] - alone).max() <= 1e-6
    ids = [ours.encode(text) for text in TEXTS]
    assert np.abs(ours.embed(ids) - alone).max() <= 1e-6
    assert np.abs(ours.embed(ids[0]) - alone[0]).max() <= 1e-6
    assert ours.embed(TEXTS[:1]).shape == (1, 32)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3 * BATCH_TOKENS), max_size=40), st.integers(1, 9))
def test_a_run_has_few_rows_and_few_tokens(lengths, most_rows):
    found = list(batches(lengths, most_rows))
    assert [place for run in found for place in run] == list(range(len(lengths)))
    for run in found:
        assert len(run) == 1 or len(run) * max(lengths[place] for place in run) <= BATCH_TOKENS
        assert len(run) <= most_rows
    for run, after in pairwise(found):  # no run is shorter than it must be
        longest = max(lengths[place] for place in (*run, after[0]))
        assert len(run) == most_rows or (len(run) + 1) * longest > BATCH_TOKENS


def test_texts_run_in_batches_of_few_tokens(models, monkeypatch):
    ours = models["masked"].ours
    whole = ours.embed(TEXTS)
    monkeypatch.setattr(text_encoder, "BATCH_TOKENS", 12)
    session, sizes = ours.session, []

    def run(names, feeds):
        sizes.append(feeds["input_ids"].size)
        return session.run(names, feeds)

    monkeypatch.setattr(ours, "session", SimpleNamespace(run=run, get_outputs=session.get_outputs))
    assert np.abs(ours.embed(TEXTS) - whole).max() <= 1e-6
    longest = max(len(ours.encode(text)) for text in TEXTS)
    assert len(sizes) > 1 and max(sizes) <= max(12, longest)


def test_texts_of_like_lengths_run_together(models, monkeypatch):
    ours, session, shapes = models["masked"].ours, models["masked"].ours.session, []

    def run(names, feeds):
        shapes.append(feeds["input_ids"].shape)
        return session.run(names, feeds)

    monkeypatch.setattr(ours, "session", SimpleNamespace(run=run, get_outputs=session.get_outputs))
    ours.embed(TEXTS, batch_size=2)
    assert shapes == [(2, 4), (2, 7), (1, 11)]
    shapes.clear()
    # A pair is as long as its tokens are.
    ours.embed([*PAIRS, ("w8", "w9")], batch_size=2)
    assert shapes == [(2, 5), (2, 11)]


def test_pairs_have_vectors_too(models):
    vectors = models["masked"].ours.embed([*PAIRS, "w9"])
    for vector, pair in zip(vectors, [*PAIRS, ("w9",)], strict=True):
        assert np.abs(vector - states(models["masked"], *pair).mean(0)).max() < CLOSE
    assert np.abs(models["masked"].ours.embed(PAIRS[0]) - vectors[0]).max() <= 1e-6


def test_a_tuple_of_three_texts_is_three_texts(models):
    assert (models["masked"].ours.embed(tuple(TEXTS[:3])) == models["masked"].ours.embed(TEXTS[:3])).all()


# Labels


def assert_like_the_pipeline(found, expected):
    expected = expected[0] if isinstance(expected[0], list) else expected
    assert [each.label for each in found] == [each["label"] for each in expected]
    assert np.allclose([each.probability for each in found], [each["score"] for each in expected], atol=CLOSE)


@pytest.mark.parametrize("name", ["text", "score", "several", "numbers", "number"])
def test_labels_and_probabilities_are_those_of_transformers(models, name):
    model = models[name]
    pipeline = transformers.pipeline("text-classification", model=model.theirs, tokenizer=model.tokenizer, top_k=None)
    found = model.ours.classify(TEXTS, batch_size=2)
    for text, classes in zip(TEXTS, found, strict=True):
        assert_like_the_pipeline(classes, pipeline(text))
        assert_like_the_pipeline(model.ours.classify(text), pipeline(text))
    pairs = [pipeline({"text": first, "text_pair": second}) for first, second in PAIRS]
    for classes, expected in zip(model.ours.classify(PAIRS), pairs, strict=True):
        assert_like_the_pipeline(classes, expected)
    assert_like_the_pipeline(model.ours.classify(PAIRS[0]), pairs[0])


def test_probabilities_are_of_all_labels_likeliest_first(models):
    for classes in models["text"].ours.classify(TEXTS):
        assert {each.label for each in classes} == set(LABELS)
        assert abs(sum(each.probability for each in classes) - 1) < 1e-9
        assert classes == sorted(classes, key=lambda each: -each.probability)
    assert len({classes[0].label for classes in models["text"].ours.classify([f"w{id}" for id in range(5, 60)])}) > 1


def test_a_pair_is_not_its_texts_in_a_row(models):
    # Negative control: the types of the tokens count.
    ours = models["text"].ours
    ids, types = ours.tokenizer.encode_pair(*PAIRS[0])
    assert sorted(set(types)) == [0, 1]
    assert ours.classify(PAIRS[0])[0].probability != pytest.approx(ours.classify(ids)[0].probability, abs=1e-3)


def test_each_token_has_its_likeliest_label(models):
    model = models["token"]
    with torch.no_grad():
        logits = [model.theirs(**model.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    found = model.ours.classify(TEXTS, batch_size=3)
    for row, expected in zip(found, logits, strict=True):
        best = expected.softmax(-1).max(-1)
        assert [each.label for each in row] == [("O", "NAME")[label] for label in best.indices]
        assert np.allclose([each.probability for each in row], best.values, atol=CLOSE)
    assert model.ours.classify(TEXTS[0]) == pytest.approx(found[0])
    assert {each.label for row in found for each in row} == {"O", "NAME"}


# Masks


@pytest.mark.parametrize("text", ["w9 [MASK] w7", "[MASK]", "w9 w8 w7 w6 [MASK]"])
def test_a_mask_is_filled_as_by_transformers(models, text):
    model = models["masked"]
    pipeline = transformers.pipeline("fill-mask", model=model.theirs, tokenizer=model.tokenizer)
    expected = pipeline(text, top_k=7)
    found = model.ours.fill_mask(text, top_k=7)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.token_id, ours.token, ours.text) == (theirs["token"], theirs["token_str"], theirs["sequence"])
        assert abs(ours.probability - theirs["score"]) < CLOSE
    assert model.ours.fill_mask(model.ours.encode(text), top_k=7) == found
    assert model.ours.fill_mask(text) == found[:5]
    assert model.ours.fill_mask(text, top_k=1) == found[:1]


def test_all_words_together_have_the_probability_one(models):
    every = models["masked"].ours.fill_mask("w9 [MASK]", top_k=1000)
    assert len(every) == VOCABULARY
    assert abs(sum(each.probability for each in every) - 1) < 1e-9


# The graph itself


def test_run_gives_the_outputs_of_the_graph(models):
    for name, output in (("masked", "logits"), ("token", "logits"), ("sentence", "sentence_embedding")):
        outputs = models[name].ours.run(TEXTS)
        assert list(outputs) == ["last_hidden_state", output]
        assert outputs["last_hidden_state"].shape == (len(TEXTS), 11, 32)
        assert list(models[name].ours.run(TEXTS, [output])) == [output]
        for row, text in zip(outputs["last_hidden_state"], TEXTS, strict=True):
            expected = states(models[name], text)
            assert np.abs(row[: len(expected)] - expected).max() < CLOSE
    mixed = models["text"].ours.run([TEXTS[0], PAIRS[0], [2, 9, 3]])["logits"]
    assert np.abs(mixed[1] - models["text"].ours.run([PAIRS[0]])["logits"][0]).max() < CLOSE


# What cannot be done


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("masked", lambda model: model.classify("w9"), "^this model has no classes. It fills masks: fill_mask.$"),
        ("text", lambda model: model.fill_mask("w9"), "^this model fills no masks. It classifies: classify.$"),
        ("token", lambda model: model.fill_mask("w9"), "^this model fills no masks. It classifies: classify.$"),
        ("sentence", lambda model: model.classify("w9"), "^this model has no classes. It embeds: embed.$"),
        ("sentence", lambda model: model.fill_mask("w9"), "^this model fills no masks. It embeds: embed.$"),
        ("masked", lambda model: model.fill_mask("w9"), r"^the text has 0 masks; give it one \[MASK\].$"),
        ("masked", lambda model: model.fill_mask("[MASK] [MASK]"), r"^the text has 2 masks; give it one \[MASK\].$"),
        ("masked", lambda model: model.fill_mask("[MASK]", top_k=0), "^top_k is 0; it must be at least 1.$"),
        ("masked", lambda model: model.fill_mask("[MASK]", top_k=-1), "^top_k is -1; it must be at least 1.$"),
        ("masked", lambda model: model.embed("w9 " * 23, truncate=False), "^the text has 25 tokens, and the model tak"),
        ("masked", lambda model: model.embed([("w9 " * 11, "w8 " * 11)], truncate=False), "^the text has 25 tokens"),
        ("masked", lambda model: model.embed([9] * 25), "^the text has 25 tokens, and the model takes 24 at most."),
        ("text", lambda model: model.classify("w9 " * 23), "^the text has 25 tokens, and the model takes 24 at most."),
        ("text", lambda model: model.classify([["w9"] * 0]), "^the text is empty; give at least one token."),
        ("masked", lambda model: model.embed([]), "^the text is empty"),
        ("masked", lambda model: model.embed([[64]]), "^the text has token ids outside 0 to 63, the model's vocab"),
        ("masked", lambda model: model.embed(["w9", [9, 64]]), r"^text 1 of the list, \[9, 64\] .*vocabulary: 64\.$"),
        ("masked", lambda model: model.embed(TEXTS, batch_size=0), "^batch_size is 0; it must be at least 1.$"),
        ("masked", lambda model: model.run([]), "^run takes a list of texts."),
        ("masked", lambda model: model.run("w9 w8"), "^run takes a list of texts."),
        ("masked", lambda model: model.run(["w9"], ["states"]), "^there is no output 'states'; .* last_hidden_"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_it_says(models, name, call, message):
    with pytest.raises(RequestError, match=message):
        call(models[name].ours)


@pytest.mark.parametrize("text", ["w9 w8 w7 " * 20, ("w9 w8 " * 20, "w7 w6 w5"), ("w9 w8", "w7 w6 w5 " * 20)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_longer_texts_are_cut_as_by_transformers(models, monkeypatch, text, side):
    ours, theirs = models["masked"].ours, models["masked"].tokenizer
    monkeypatch.setitem(ours.tokenizer.config, "truncation_side", side)
    monkeypatch.setattr(ours.tokenizer, "_truncating", None)
    monkeypatch.setattr(theirs, "truncation_side", side)
    parts = [text] if isinstance(text, str) else text
    cut = theirs(*parts, truncation=True, max_length=24)
    assert ours.tokenizer.encode_truncated(parts, 24) == (cut["input_ids"], cut["token_type_ids"])
    assert len(cut["input_ids"]) == 24
    if isinstance(text, str):
        np.testing.assert_array_equal(ours.embed(text), ours.embed(cut["input_ids"]))
        batch = ours.embed(["w9", text])
        np.testing.assert_allclose(batch[1], ours.embed(text), atol=CLOSE)


def test_the_longest_text_is_read(models):
    assert models["masked"].ours.embed("w9 " * 22).shape == (32,)


def test_without_a_tokenizer_there_are_ids(models, monkeypatch):
    ours = models["masked"].ours
    expected = ours.embed("w9 w8")
    monkeypatch.setattr(ours, "tokenizer", None)
    assert (ours.embed([2, 9, 8, 3]) == expected).all()
    assert (ours.embed(np.array([2, 9, 8, 3])) == expected).all()
    for call in (lambda: ours.embed("w9"), lambda: ours.embed([("w9", "w8")]), lambda: ours.fill_mask([2, 4, 3])):
        with pytest.raises(RequestError, match=r"has no tokenizer\.json, so it takes token ids, not text"):
            call()


def test_a_tokenizer_that_names_no_mask_fills_none(models, monkeypatch):
    ours = models["masked"].ours
    monkeypatch.setattr(ours.tokenizer, "config", {})
    with pytest.raises(RequestError, match="^the tokenizer of this model names no mask token, so there is nothing to"):
        ours.fill_mask("[MASK]")


def test_dimensions_are_checked_before_anything_is_computed(models, monkeypatch):
    for name in ("masked", "sentence"):
        monkeypatch.setattr(models[name].ours, "session", None)
        with pytest.raises(RequestError, match="dimensions is 33; it must be between 1 and 32"):
            models[name].ours.embed(TEXTS, dimensions=33)
