"""Answers to questions: the spans that a plain search finds in the logits of transformers' model, over all windows."""

import itertools
import json

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from test_encoder import SIZES, write_tokenizer

from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import load

QUESTION = "w9 w8 w7"
SHORT = "w20 w21 w22  w23 w24 w25"
LONG = " ".join(f"w{5 + 7 * place % 59}" for place in range(40))
LONGEST = 4
CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(make_model):
    folder = make_model("bert", 3, auto="AutoModelForQuestionAnswering", **SIZES)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory):
    return export_model(folder, tmp_path_factory.mktemp("bundles") / "answers", verify=None).path


@pytest.fixture(scope="module")
def ours(bundle):
    return load(bundle)


@pytest.fixture(scope="module")
def expected(folder):
    """Return a function that returns all spans of a context as (score, start, end), and the least score of none."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def search(context):
        room = SIZES["max_position_embeddings"] - len(tokenizer(QUESTION, "").input_ids)
        windows = tokenizer(
            QUESTION, context, truncation="only_second", max_length=SIZES["max_position_embeddings"],
            stride=room // 2, return_overflowing_tokens=True, return_offsets_mapping=True, padding=False,
        )  # fmt: skip
        best, none = {}, []
        for index, ids in enumerate(windows["input_ids"]):
            with torch.no_grad():
                types = torch.tensor([windows["token_type_ids"][index]])
                logits = model(torch.tensor([ids]), token_type_ids=types)
            tokens = [place for place, part in enumerate(windows.sequence_ids(index)) if part == 1]
            possible = [0, *tokens]
            start, end = (
                dict(zip(possible, each[0, possible].double().softmax(0).tolist(), strict=True))
                for each in (logits.start_logits, logits.end_logits)
            )
            none.append(start[0] * end[0])
            offsets = windows["offset_mapping"][index]
            for first, last in itertools.product(tokens, tokens):
                if first <= last < first + LONGEST:
                    place = offsets[first][0], offsets[last][1]
                    best[place] = max(best.get(place, 0), start[first] * end[last])
        return sorted(((score, *place) for place, score in best.items()), reverse=True), min(none), index + 1

    return search


@pytest.mark.parametrize(("context", "windows"), [(SHORT, 1), (LONG, 4)])
def test_answers_are_the_likeliest_spans_of_all_windows(ours, expected, context, windows):
    spans, none, count = expected(context)
    assert count >= windows
    found = ours.answer(QUESTION, context, top_k=5, max_answer_tokens=LONGEST, batch_size=2)
    assert len(found) == 5
    for answer, (score, start, end) in zip(found, spans, strict=False):
        assert (answer.start, answer.end) == (start, end)
        assert answer.text == context[start:end] != ""
        assert answer.score == pytest.approx(score, abs=CLOSE)
    every = ours.answer(QUESTION, context, top_k=1000, max_answer_tokens=LONGEST, allow_none=True)
    assert len(every) == len(spans) + 1
    (without,) = [each for each in every if each.text == ""]
    assert without.score == pytest.approx(none, abs=CLOSE)
    assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)


def test_the_question_counts(ours):
    # Negative control: another question has other scores.
    answers = [ours.answer(question, SHORT)[0].score for question in (QUESTION, "w50 w51")]
    assert abs(answers[0] - answers[1]) > 100 * CLOSE


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((QUESTION, ""), {}, "context is ''; it must be a text, which is not empty"),
        ((" ", SHORT), {}, "question is ' '; it must be a text, which is not empty"),
        ((QUESTION, [5, 6]), {}, r"context is \[5, 6\]; it must be a text"),
        ((" ".join(["w7"] * 30), SHORT), {}, "the question has 33 tokens of the model's 24, which leaves no room"),
        ((QUESTION, SHORT), {"top_k": 0}, "top_k is 0; it must be at least 1"),
        ((QUESTION, SHORT), {"max_answer_tokens": 0}, "max_answer_tokens is 0; it must be at least 1"),
        ((QUESTION, SHORT), {"allow_none": 1}, "allow_none is 1 .*; it must be True or False"),
    ],
)
def test_wrong_questions_are_refused(ours, arguments, options, message):
    with pytest.raises(RequestError, match=message):
        ours.answer(*arguments, **options)


def test_other_verbs_name_this_one(ours):
    with pytest.raises(RequestError, match="this model has no classes. It answers questions: answer."):
        ours.classify(SHORT)
    assert np.isfinite(ours.embed(SHORT)).all()


def test_run_answers_a_question(bundle, ours):
    done = CliRunner().invoke(cli, ["run", str(bundle), SHORT, "--question", QUESTION, "--json"])
    (answer,) = json.loads(done.stdout)
    assert answer["text"] == ours.answer(QUESTION, SHORT)[0].text
    done = CliRunner().invoke(cli, ["run", str(bundle), SHORT])
    assert done.exit_code == 1
    assert "this model answers questions about PROMPT; ask one: --question TEXT" in done.stderr
