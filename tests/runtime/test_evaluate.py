"""Scores of bundles: which answers are right, and what right answers and texts cost in nats.

The oracle is transformers in float64 on the same weights, with the definitions written out token by token.
"""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from edgeformer.checkpoints.found_model import PRESETS
from edgeformer.config import ClassificationHead
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.manifest.parts import Provenance
from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.perplexity import perplexity, score_text, surprise, windows
from edgeformer.runtime.measure.evaluation.questions import Question, choose, preset_questions, read_questions
from edgeformer.runtime.measure.evaluation.scores import wilson

CLOSE = 1e-5  # relative, of sums of float32 log-probabilities


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle, threads=1)


@pytest.fixture(scope="module")
def theirs():
    return transformers.AutoModelForCausalLM.from_pretrained(PRESETS / "tiny-llama", dtype=torch.float64)


@pytest.fixture(scope="module")
def asked(model):
    return choose(read_questions(preset_questions(model.manifest)), 4)


@pytest.fixture(scope="module")
def result(model, asked):
    return evaluate(model, asked, batch_size=7)


@pytest.fixture(scope="module")
def corrupted(tiny_llama_bundle, tmp_path_factory):
    """The preset with noise on its weights."""
    folder = tmp_path_factory.mktemp("bundles") / "corrupted"
    shutil.copytree(tiny_llama_bundle, folder)
    path = folder / "onnx" / "model.onnx_data"
    weights = np.fromfile(path, np.float32)
    (weights * (1 + 0.5 * np.random.default_rng(0).standard_normal(weights.shape, np.float32))).tofile(path)
    return load(folder, threads=1)


def log_probabilities(theirs, **inputs):
    """After each token that the decoder reads: float64 [S, V]."""
    with torch.no_grad():
        return theirs(**{name: torch.tensor([ids]) for name, ids in inputs.items()}).logits[0].log_softmax(-1).numpy()


def test_right_answers_are_those_that_transformers_would_write(model, theirs, asked, result):
    for question, answer in zip(asked, result.answers, strict=True):
        prompt, wanted = (model.tokenizer.encode(text) for text in (question.prompt, question.answer))
        found = log_probabilities(theirs, input_ids=[*prompt, *wanted])[len(prompt) - 1 :]
        *written, end = found.argmax(-1).tolist()
        assert answer.question == question
        assert answer.right == (written == wanted and end in model.manifest.tokens.eos)
        ends = math.log(np.exp(found[-1, list(model.manifest.tokens.eos)]).sum())
        assert answer.nats == pytest.approx(-sum(found[range(len(wanted)), wanted]) - ends, rel=CLOSE, abs=CLOSE)
        assert answer.tokens == len(wanted) + 1


def test_counts_are_those_of_the_answers(asked, result):
    assert [score.skill for score in result.skills] == list(dict.fromkeys(each.skill for each in asked))
    for score in result.skills:
        own = [answer for answer in result.answers if answer.question.skill == score.skill]
        assert (score.problems, score.right) == (4, sum(answer.right for answer in own))
        assert score.perplexity == pytest.approx(math.exp(sum(a.nats for a in own) / sum(a.tokens for a in own)))
    assert result.total.right == sum(score.right for score in result.skills)
    assert result.total.exact == result.total.right / len(asked)


def test_the_neighbours_in_a_batch_do_not_matter(model, asked, result):
    other = evaluate(model, asked, batch_size=1)
    assert [each.right for each in other.answers] == [each.right for each in result.answers]
    assert result.changes(other) == (0, 0)


def test_answers_to_other_questions_are_wrong(model, asked, result):
    turned = [*asked[1:], asked[0]]
    wrong = [Question(each.skill, each.prompt, other.answer) for each, other in zip(asked, turned, strict=True)]
    other = evaluate(model, wrong)
    assert other.total.exact < 0.1 < result.total.exact
    assert other.total.perplexity > 3 * result.total.perplexity


def test_corrupted_weights_score_lower(corrupted, asked, result):
    other = evaluate(corrupted, asked)
    assert other.total.right < 0.5 * result.total.right
    assert other.total.perplexity > 2 * result.total.perplexity
    lost, won = result.changes(other)
    assert lost - won == result.total.right - other.total.right and lost > 0


def test_an_answer_must_be_whole_and_ended_by_the_model(model, asked, result):
    question = next(each.question for each in result.answers if each.right)
    shorter = Question("", question.prompt, question.answer[:-1])
    longer = Question("", question.prompt, question.answer + " or so")
    assert [each.right for each in evaluate(model, [question, shorter, longer]).answers] == [True, False, False]
    assert question.answered_by(f" {question.answer.strip()}\n") and not question.answered_by(shorter.answer)


def test_an_end_that_nobody_sees_is_none(model, result, monkeypatch):
    question = next(each.question for each in result.answers if each.right)
    tokens = model.tokenizer.encode(question.prompt + question.answer)
    endless = replace(model.manifest, tokens=replace(model.manifest.tokens, eos=()), context_length=len(tokens) + 1)
    monkeypatch.setattr(model, "manifest", endless)
    (answer,) = evaluate(model, [question]).answers
    # The special token that ends the answer is not among the ends: it is skipped, and there is room for no more.
    assert question.answered_by(answer.text) and not answer.right


def test_a_text_may_stop_an_answer(model):
    story = model.generate("Once upon a time", max_new_tokens=40)
    first, second, *_ = story.text.split(". ")
    question = Question("", "Once upon a time", first)
    prompt, both = (len(model.tokenizer.encode(text)) for text in (question.prompt, question.prompt + first))
    assert not evaluate(model, [question]).answers[0].right
    stopped = evaluate(model, [question], stop=". ").answers[0]
    assert stopped.right and stopped.text == first
    assert not evaluate(model, [question], stop=second[:4]).answers[0].right
    # What ends it is no part of the answer's cost.
    assert stopped.tokens == both - prompt


def test_questions_longer_than_the_context_are_refused(model):
    long = Question("long", "a b " * 600, "c")
    with pytest.raises(RequestError, match=r"a question of 'long' has 1\d+ tokens and its answer 1, too many for the"):
        evaluate(model, [long])
    for options, message in (({"limit": 0}, "limit is 0"), ({"batch_size": 0}, "batch_size is 0")):
        with pytest.raises(RequestError, match=message):
            evaluate(model, [Question("", "a", "b")], **options)
    with pytest.raises(RequestError, match="there is no question"):
        evaluate(model, [])


@pytest.mark.parametrize(
    ("right", "problems", "low", "high"),
    [(0, 10, 0.0, 0.27753), (8, 10, 0.49016, 0.94331), (10, 10, 0.72247, 1.0)],
)
def test_wilson(right, problems, low, high):
    assert wilson(right, problems) == pytest.approx((low, high), abs=1e-5)
    # By its definition: the shares from which what was seen is just as far as 95 % of all samples are at most.
    z = 1.959963984540054
    for end in wilson(right, problems):
        assert abs(right / problems - end) == pytest.approx(z * math.sqrt(end * (1 - end) / problems), abs=1e-7)


def test_a_limit_draws_by_the_seed_and_keeps_the_order():
    questions = [Question(f"skill {number % 3}", str(number), "") for number in range(30)]
    first, again, other = (choose(questions, 4, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first == sorted(first, key=questions.index) and len(first) == 12
    assert choose(questions, 99) == choose(questions, None) == questions


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"questions.jsonl, line 3 is not valid JSON: "),
        ("[1]", r"line 3 must be a JSON object with skill, prompt, answer\."),
        ('{"skill": "a", "prompt": "b"}', r"line 3: answer is None; it must be a text\."),
        ('{"skill": "a", "prompt": 7, "answer": "c"}', r"line 3: prompt is 7; it must be a text\."),
        ('{"skill": " ", "prompt": "b", "answer": "c"}', r"line 3: skill is ' '; it must be a text\."),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    path = tmp_path / "questions.jsonl"
    good = json.dumps({"skill": "a", "prompt": "b", "answer": "c", "id": 5})
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(RequestError, match=message):
        read_questions(path)
    path.write_text(f"{good}\n\n{good}")
    assert read_questions(path) == 2 * [Question("a", "b", "c")]


def test_files_that_hold_no_questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    with pytest.raises(RequestError, match="cannot read .*questions.jsonl: No such file"):
        read_questions(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(RequestError, match="has no questions; each is a line of JSON with skill, prompt, answer"):
        read_questions(path)
    path.write_bytes(b"{}\xff")
    with pytest.raises(RequestError, match="is not a text in UTF-8: byte 2"):
        read_questions(path)


def test_only_presets_have_questions(model):
    path = preset_questions(model.manifest)
    assert path == PRESETS / "tiny-llama" / "evaluation.jsonl"
    for source in ("folder tiny-llama", "preset ..", "preset tiny-lama"):
        with pytest.raises(RequestError, match=f"exported from {source}, and only presets come with problems.*--text"):
            preset_questions(replace(model.manifest, provenance=Provenance(source=source)))


TEXT = "Once upon a time, there was a dog. Voilà: 12 + 30 = 42 in the café, and nobody knew why."


@pytest.mark.parametrize("window", [2, 15, 16, 1024])
def test_a_text_costs_what_transformers_says_token_by_token(model, theirs, window):
    tokens = model.tokenizer.encode(TEXT)
    assert 2 * 16 < len(tokens) < 1024
    nats = 0.0
    for place in range(1, len(tokens)):
        # Windows begin at whole multiples of half a window, as late as they can with half a window before the token.
        step = window // 2
        start = 0 if place < window else (place - (window - step)) // step * step
        assert place - start >= min(place, window / 2) and place - start < window
        nats -= log_probabilities(theirs, input_ids=tokens[start:place])[-1, tokens[place]]
    score = score_text(model, TEXT, window)
    assert score.nats == pytest.approx(nats, rel=CLOSE)
    assert (score.tokens, score.window) == (len(tokens) - 1, window)
    assert score.perplexity == pytest.approx(math.exp(nats / (len(tokens) - 1)), rel=1e-4)
    # "Once" is one token, and nothing stands before it.
    assert score.bytes == len(TEXT.encode()) - len(model.tokenizer.decode(tokens[:1]).encode()) > len(TEXT) - 8
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / score.bytes, rel=CLOSE)


@pytest.mark.parametrize("window", [2, 3, 8, 9])
@pytest.mark.parametrize("tokens", [2, 7, 8, 9, 40])
def test_every_token_is_predicted_once_after_half_a_window(tokens, window):
    predicted = []
    for start, first, end in windows(tokens, window):
        assert end - start <= window and first - start >= (1 if start == 0 else window / 2)
        predicted += range(first, end)
    assert predicted == list(range(1, tokens))


@pytest.fixture(scope="module")
def story(model):
    return model.generate("Once upon a time", max_new_tokens=150, temperature=0.8, seed=1).text


def test_corrupted_weights_and_shuffled_words_cost_more(model, corrupted, story):
    score = score_text(model, story)
    assert score.window == model.manifest.context_length
    shuffled = " ".join(np.random.default_rng(0).permutation(story.split()))
    for other in (score_text(corrupted, story), score_text(model, shuffled)):
        assert other.bits_per_byte > 1.5 * score.bits_per_byte


def test_more_context_costs_less(model, story):
    wide, narrow = (score_text(model, story, window) for window in (128, 2))
    assert wide.perplexity < 0.7 * narrow.perplexity


def test_a_first_token_of_its_own_predicts_the_first_of_the_text(model, tiny_llama_bundle, theirs):
    other = load(tiny_llama_bundle, threads=1)
    other.tokenizer.backend.post_processor = tokenizers.processors.TemplateProcessing(
        "<|im_end|> $A", special_tokens=[("<|im_end|>", 2)]
    )
    tokens = [2, *model.tokenizer.encode(TEXT)]
    found = log_probabilities(theirs, input_ids=tokens)
    score = score_text(other, TEXT)
    assert (score.tokens, score.bytes) == (len(tokens) - 1, len(TEXT.encode()))
    assert score.nats == pytest.approx(-sum(found[range(len(tokens) - 1), tokens[1:]]), rel=CLOSE)


def test_texts_and_windows_that_cannot_be_scored(model):
    for text in ("", "Once"):
        with pytest.raises(RequestError, match=rf"the text has {len(text) // 4} tokens; it must have two"):
            score_text(model, text)
    for window in (1, 1025):
        with pytest.raises(RequestError, match=f"the window is {window} tokens; it must be 2 to 1024"):
            score_text(model, TEXT, window)


def test_nats_neither_overflow_nor_vanish():
    assert surprise(np.array([0, 2000], np.float32), [0]) == pytest.approx(2000)
    assert surprise(np.array([5, 5, 5, 5], np.float16), [1, 3]) == pytest.approx(math.log(2))
    assert perplexity(1e4, 1) == math.inf


def write_tokenizer(folder, special, around):
    """Token 7 is the word w7."""
    vocabulary = {token: id for id, token in enumerate(special)} | {f"w{id}": id for id in range(len(special), 64)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, special[-1]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    pairs = list(zip(special, range(len(special)), strict=True))
    backend.post_processor = tokenizers.processors.TemplateProcessing(around, special_tokens=pairs)
    backend.add_special_tokens(special)
    backend.save(str(folder / "tokenizer.json"))


T5 = {
    "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
ENDS = list(range(1, 64, 5))


@pytest.fixture(scope="module")
def translator(make_model, tmp_path_factory):
    folder = make_model("t5", 3, auto="AutoModelForSeq2SeqLM", **T5)
    # Random weights hardly ever write one token in 64; and a makers' beams are not greedy.
    generation = {"eos_token_id": ENDS, "no_repeat_ngram_size": 2, "num_beams": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(folder, ["<pad>", "</s>", "<unk>"], "$A </s>")
    bundle = export_model(folder, tmp_path_factory.mktemp("bundles") / "t5", context_length=40, verify=None).path
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64)
    return SimpleNamespace(ours=load(bundle, threads=1), theirs=theirs)


def test_translators_write_greedily_and_foretell_answers(translator):
    ours = translator.ours
    sources = [" ".join(f"w{(7 * row + 11 * place) % 61 + 3}" for place in range(2 + row % 5)) for row in range(12)]
    written = [ours.generate(source, num_beams=1, max_new_tokens=20) for source in sources]
    ended = [(s, w) for s, w in zip(sources, written, strict=True) if w.finish_reason == "eos" and w.text]
    assert len(ended) > 3
    questions = [Question("a", source, result.text) for source, result in ended]
    found = evaluate(ours, [*questions, Question("b", sources[0], "w9 w8 w9 w8")], batch_size=5)
    assert [score.right for score in found.skills] == [len(questions), 0]
    for answer in found.answers:
        source, wanted = (ours.tokenizer.encode(text) for text in (answer.question.prompt, answer.question.answer))
        after = log_probabilities(translator.theirs, input_ids=source, decoder_input_ids=[0, *wanted[:-1]])
        nats = -sum(after[range(len(wanted) - 1), wanted[:-1]]) - math.log(np.exp(after[-1, ENDS]).sum())
        assert (answer.nats, answer.tokens) == (pytest.approx(nats, rel=CLOSE), len(wanted))
    with pytest.raises(RequestError, match="a text's perplexity is that of a decoder .* this bundle is a seq2seq-lm"):
        score_text(ours, "w9 w8")
    with pytest.raises(RequestError, match="a question of 'c' has 2 tokens and its answer 50, too many"):
        evaluate(ours, [Question("c", "w9", "w8 " * 50)])


def test_translators_of_many_languages_are_refused(translator, monkeypatch):
    monkeypatch.setitem(translator.ours.tokenizer.config, "tokenizer_class", "NllbTokenizer")
    with pytest.raises(RequestError, match="questions name no languages, so this translator is not scored: this model"):
        evaluate(translator.ours, [Question("a", "w9", "w8")])


@pytest.fixture(scope="module")
def encoder(make_model, tmp_path_factory):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 24}
    folder = make_model("bert", 5, auto="AutoModel", num_hidden_layers=1, num_attention_heads=4, **sizes)
    write_tokenizer(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[CLS] $A [SEP]")
    bundle = tmp_path_factory.mktemp("bundles") / "bert"
    return load(export_model(folder, bundle, pooling="mean", verify=None).path, threads=1)


def test_encoders_pick_the_nearest_answer_of_the_skill(encoder):
    texts = [f"w{number} w{number + 7} w{3 * number}" for number in range(5, 20)]
    same = [Question("same", text, text) for text in texts]
    turned = [Question("turned", text, other) for text, other in zip(texts, [*texts[1:], texts[0]], strict=True)]
    found = evaluate(encoder, [*same, *turned], batch_size=4)
    assert [(score.right, score.problems) for score in found.skills] == [(15, 15), (0, 15)]
    assert found.total.perplexity is None
    assert [answer.text for answer in found.answers] == 2 * texts
    # The others stay in the choice where only some are asked.
    few = evaluate(encoder, turned, limit=2).answers
    assert [answer.text for answer in few] == [answer.question.prompt for answer in few]


def test_encoders_that_do_not_embed_are_refused(encoder, monkeypatch):
    labels = replace(encoder.config, head=ClassificationHead(labels=("bad", "good"), pooling="first"))
    monkeypatch.setattr(encoder, "manifest", replace(encoder.manifest, model=labels))
    with pytest.raises(
        RequestError, match="this encoder labels texts, fills masks or finds answers.*it has no such score"
    ):
        evaluate(encoder, [Question("a", "w9", "w8")])
