"""Multilingual models are told their languages as transformers 5.23 tells them.

The oracle for NLLB, mBART, mBART-50 and T5 is the tokenizer of transformers, on the same files. Those of M2M100 and
Marian need sentencepiece there; what is expected of them is what their classes say (`set_src_lang_special_tokens` of
tokenization_m2m_100.py, `_tokenize` and `build_inputs_with_special_tokens` of tokenization_marian.py).
"""

import json

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, processors

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.text.languages import plan_translation
from edgeformer.runtime.text.tokenizer import Tokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
END = 2
WORDS = ["▁", "▁the", "▁cat", "▁sleeps", "▁en", "en", "the", *"abcdehlnpst"]
TEXT = "the cat sleeps"
PIECES = ["▁the", "▁cat", "▁sleeps"]


def unigram(special, more=()):
    """A vocabulary as sentencepiece has it."""
    return [(token, 0.0) for token in special] + [(word, -len(word) / 9) for word in WORDS] + [(t, 0.0) for t in more]


def save(folder, tokenizer_class, vocabulary, languages=(), *, special=True, end=END, **config):
    """Files of a tokenizer that is not one of transformers'."""
    backend = tokenizers.Tokenizer(models.WordLevel({token: id for id, token in enumerate(vocabulary)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", end)])
    backend.add_special_tokens(SPECIAL)
    add = backend.add_special_tokens if special else backend.add_tokens
    add(list(languages))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class} | config))
    return Tokenizer(folder)


def nllb(folder, **options):
    vocabulary = {token: id for id, token in enumerate([*SPECIAL, "▁", *"thecaslp"])}
    tokenizer = transformers.NllbTokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=["eng_Latn", "fra_Latn", "deu_Latn"], **options
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def mbart(folder, kind):
    codes = __import__(f"transformers.models.{kind}.tokenization_{kind}", fromlist=["x"]).FAIRSEQ_LANGUAGE_CODES
    tokenizer_class = {"mbart": transformers.MBartTokenizer, "mbart50": transformers.MBart50Tokenizer}[kind]
    tokenizer = tokenizer_class(vocab=unigram(SPECIAL, [*codes, "<mask>"]))
    tokenizer.save_pretrained(folder)
    return tokenizer


def of_transformers(theirs, source, target):
    """Ids for the encoder, and the token of the language to be written."""
    inputs = theirs._build_translation_inputs(TEXT, return_tensors=None, src_lang=source, tgt_lang=target)
    return inputs["input_ids"], inputs["forced_bos_token_id"]


@pytest.mark.parametrize(
    ("make", "source", "target"),
    [
        (nllb, "fra_Latn", "deu_Latn"),
        (lambda folder: nllb(folder, legacy_behaviour=True), "fra_Latn", "deu_Latn"),
        (lambda folder: mbart(folder, "mbart50"), "fr_XX", "sl_SI"),
    ],
    ids=["nllb", "nllb-legacy", "mbart50"],
)
def test_the_language_is_the_first_token_written(tmp_path, make, source, target):
    theirs = make(tmp_path)
    ours = Tokenizer(tmp_path)
    plan = plan_translation(ours, {}, source, target, END)
    assert (plan.encode(ours, TEXT), plan.first) == of_transformers(theirs, source, target)
    assert plan.start is None
    other = plan_translation(ours, {}, target, source, END)
    assert other.encode(ours, TEXT) != plan.encode(ours, TEXT)


def test_mbart_starts_with_the_language(tmp_path):
    # mbart.md of transformers: generate(**inputs, decoder_start_token_id=the language's).
    theirs = mbart(tmp_path, "mbart")
    ours = Tokenizer(tmp_path)
    plan = plan_translation(ours, {}, "fr_XX", "ro_RO", END)
    assert (plan.encode(ours, TEXT), plan.start) == of_transformers(theirs, "fr_XX", "ro_RO")
    assert plan.encode(ours, TEXT)[-2:] == [END, theirs.convert_tokens_to_ids("fr_XX")]
    assert plan.first is None


def test_m2m100_has_its_codes_between_underscores(tmp_path):
    # `en` is a piece of words as well: no language.
    ours = save(tmp_path, "M2M100Tokenizer", [*SPECIAL, *WORDS], ["__en__", "__fr__", "__zu__"])
    english, french, _ = (ours.backend.token_to_id(f"__{code}__") for code in ("en", "fr", "zu"))
    assert ours.backend.token_to_id("en") not in (None, english)
    plan = plan_translation(ours, {}, "en", "fr", END)
    pieces = [ours.backend.token_to_id(piece) for piece in PIECES]
    assert plan.encode(ours, TEXT) == [english, *pieces, END]
    assert (plan.first, plan.start) == (french, None)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("en", "xx", "^this model has no language 'xx'; give target_language one of its codes: en, fr, zu.$"),
        ("the", "fr", "^this model has no language 'the'; give source_language one of its codes: en, fr, zu.$"),
        ("<s>", "fr", "^this model has no language '<s>'; give source_language"),
        (None, "fr", "^this model has many languages; give source_language one of its codes: en, fr, zu.$"),
        ("en", None, "^this model has many languages; give target_language one of its codes: en, fr, zu.$"),
    ],
)
def test_a_language_that_the_model_lacks_is_refused_with_a_list(tmp_path, source, target, message):
    ours = save(tmp_path, "M2M100Tokenizer", [*SPECIAL, *WORDS], ["__en__", "__fr__", "__zu__"])
    with pytest.raises(RequestError, match=message):
        plan_translation(ours, {}, source, target, END)


def test_of_many_languages_the_first_are_shown(tmp_path):
    mbart(tmp_path, "mbart50")
    with pytest.raises(RequestError, match=r"one of its codes: af_ZA, ar_AR, .*, fr_XX …\.$") as caught:
        plan_translation(Tokenizer(tmp_path), {}, "english", "fr_XX", END)
    assert str(caught.value).count(", ") == 11


@pytest.mark.parametrize("tokenizer_class", ["NllbTokenizerFast", "NllbTokenizer"])
def test_older_names_of_a_class_are_known(tmp_path, tokenizer_class):
    ours = save(tmp_path, tokenizer_class, [*SPECIAL, *WORDS], ["eng_Latn", "fra_Latn"])
    assert plan_translation(ours, {}, "eng_Latn", "fra_Latn", END).first == ours.backend.token_to_id("fra_Latn")


T5_TASKS = {
    "summarization": {"prefix": "summarize: ", "num_beams": 4},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 300},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
    "translation_fr_to_en": {"num_beams": 4},
}


def test_t5_is_told_in_words(tmp_path):
    words = ["▁translate", "▁English", "▁to", "▁French:", "▁German:"]
    vocabulary = unigram(["<pad>", "</s>", "<unk>"], words)
    theirs = transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0)
    theirs.save_pretrained(tmp_path)
    ours, generation = Tokenizer(tmp_path), {"task_specific_params": T5_TASKS}
    for target, words in (("fr", "French"), ("de", "German")):
        plan = plan_translation(ours, generation, "en", target, 1)
        assert plan.encode(ours, TEXT) == theirs(f"translate English to {words}: {TEXT}").input_ids
        assert (plan.first, plan.start) == (None, None)
    with pytest.raises(RequestError, match="^this model does not translate fr → en. It translates en → de, en → fr.$"):
        plan_translation(ours, generation, "fr", "en", 1)


def test_marian_has_the_language_before_the_text(tmp_path):
    # Whether the codes are added tokens, or only in the vocabulary.
    for added in (["</s>", ">>fra<<", ">>deu<<"], []):
        vocabulary = [*SPECIAL, *WORDS, ">>fra<<", ">>deu<<"]
        ours = save(tmp_path, "MarianTokenizer", vocabulary, added)
        plan = plan_translation(ours, {}, None, "deu", END)
        assert plan.encode(ours, TEXT) == [vocabulary.index(token) for token in (">>deu<<", *PIECES, "</s>")]
        assert (plan.first, plan.start) == (None, None)
    # Who names no language has perhaps written it into the text.
    assert plan_translation(ours, {}, None, None, END).encode(ours, TEXT) == ours.encode(TEXT)
    with pytest.raises(RequestError, match="^this model has no language 'ita'; give target_language .*: deu, fra.$"):
        plan_translation(ours, {}, None, "ita", END)
    with pytest.raises(RequestError, match="^this model takes no language of the source; leave"):
        plan_translation(ours, {}, "eng", "fra", END)


@pytest.mark.parametrize("tokenizer_class", ["MarianTokenizer", "T5Tokenizer", ""])
def test_a_model_of_one_pair_is_told_nothing(tmp_path, tokenizer_class):
    ours = save(tmp_path, tokenizer_class, [*SPECIAL, *WORDS])
    plan = plan_translation(ours, {}, None, None, END)
    assert plan.encode(ours, TEXT) == ours.encode(TEXT)
    for source, target in (("en", None), (None, "fr"), ("en", "fr")):
        with pytest.raises(RequestError, match="^this model takes no languages; leave source_language and"):
            plan_translation(ours, {}, source, target, END)


@pytest.fixture(scope="module")
def m2m(make_model, tmp_path_factory):
    """A small translator with the tokenizer of NLLB: the bundle, and model and tokenizer of transformers."""
    folder = make_model(
        "m2m_100", 29, auto="AutoModelForSeq2SeqLM", vocab_size=20, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=32, bos_token_id=0, pad_token_id=1, eos_token_id=END, decoder_start_token_id=END,
    )  # fmt: skip
    tokenizer = nllb(folder)
    assert len(tokenizer) <= 20
    bundle = export_model(folder, tmp_path_factory.mktemp("bundles") / "m2m", verify=None).path
    return load(bundle), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder), tokenizer


TEXTS = ["the cat sleeps", "the cat", "a"]
# transformers' M2M100 counts no position for padding, even where a model writes it; ours does. No trained one would.
OPTIONS = {"max_new_tokens": 12, "no_repeat_ngram_size": 2, "suppress_tokens": [1]}


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("target", ["fra_Latn", "deu_Latn"])
def test_translations_are_those_of_transformers(m2m, num_beams, target):
    ours, theirs, tokenizer = m2m
    tokenizer.src_lang = "eng_Latn"
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side="right")
    first = tokenizer.convert_tokens_to_ids(target)
    output = theirs.generate(**inputs, forced_bos_token_id=first, num_beams=num_beams, **OPTIONS)
    expected = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert len(set(expected)) == len(TEXTS)
    assert ours.translate(TEXTS, "eng_Latn", target, num_beams=num_beams, **OPTIONS) == expected
    assert ours.translate(TEXTS[0], "eng_Latn", target, num_beams=num_beams, **OPTIONS) == expected[0]


def test_the_languages_of_a_translation_matter(m2m):
    # Negative control.
    ours, pairs = m2m[0], [("eng_Latn", "fra_Latn"), ("eng_Latn", "deu_Latn"), ("fra_Latn", "deu_Latn")]
    assert len({str(ours.translate(TEXTS, *pair, **OPTIONS)) for pair in pairs}) == 3


def test_translations_keep_the_first_token_asked_for(m2m):
    ours, tokenizer = m2m[0], m2m[0].tokenizer
    ids = [tokenizer.backend.token_to_id("eng_Latn"), *tokenizer.encode("a", add_special_tokens=False), END]
    expected = ours.generate(ids, forced_bos_token_id=7, **OPTIONS).text
    assert ours.translate("a", "eng_Latn", "deu_Latn", forced_bos_token_id=7, **OPTIONS) == expected


def test_a_language_to_start_with_is_the_prompt(m2m, tmp_path, monkeypatch):
    ours = m2m[0]
    monkeypatch.setattr(ours, "tokenizer", save(tmp_path, "MBartTokenizer", [*SPECIAL, *WORDS[:8]], ["en_XX", "ro_RO"]))
    english, romanian = (ours.tokenizer.backend.token_to_id(code) for code in ("en_XX", "ro_RO"))
    asked, generate = [], ours.generate
    monkeypatch.setattr(ours, "generate", lambda *what, **how: asked.append((what, how)) or generate(*what, **how))
    translated = ours.translate(TEXTS, "en_XX", "ro_RO", **OPTIONS)
    sources = [[*ours.tokenizer.encode(text), english] for text in TEXTS]
    own = {"prompt": [romanian], "config": None, "logits_processors": ()}
    assert asked == [((sources,), own | OPTIONS)]
    assert translated == [row.text for row in generate(sources, prompt=[romanian], **OPTIONS)]


def test_translate_gives_one_text_for_each(m2m):
    assert m2m[0].translate(["a", "a"], "eng_Latn", "fra_Latn", max_new_tokens=3)[0] is not None
    with pytest.raises(RequestError, match="^num_return_sequences is 2, but translate and transcribe give one text"):
        m2m[0].translate("a", "eng_Latn", "fra_Latn", num_beams=2, num_return_sequences=2)
    with pytest.raises(RequestError, match="^this model has no language 'xx'; give target_language one of its"):
        m2m[0].translate("a", "eng_Latn", "xx")
