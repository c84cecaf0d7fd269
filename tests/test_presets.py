"""The presets in the package do what their model cards and the README say, through our runtime."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from edgeformer.runtime import load
from edgeformer.source import PRESETS, preset_names

README = Path(__file__).parents[1] / "README.md"
ASKED = 40


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle)


def questions(preset):
    lines = (PRESETS / preset / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_held_out_dates_are_answered(model):
    asked = [each for each in questions("tiny-llama") if each["skill"] == "dates"][:ASKED]
    written = [row.text for row in model.generate([each["prompt"] for each in asked], max_new_tokens=16)]
    answers = [each["answer"] for each in asked]
    # 97 % of all 200 are right, by the model card.
    assert sum(text == answer for text, answer in zip(written, answers, strict=True)) >= 0.9 * ASKED
    # The answers of other questions are not, so that it is the question that is answered.
    assert sum(text == answer for text, answer in zip(written, [*answers[1:], answers[0]], strict=True)) <= 0.1 * ASKED


@pytest.mark.parametrize("page", [README, PRESETS / "tiny-llama" / "README.md"], ids=["readme", "card"])
def test_the_sums_that_a_page_asks_for_are_right(model, page):
    asked = re.findall(
        r'edgeformer run tiny-llama --chat "(What is (\d+) \+ (\d+)\?)"', page.read_text(encoding="utf-8")
    )
    assert asked
    for question, left, right in asked:
        answer = model.chat([{"role": "user", "content": question}], max_new_tokens=32).finish()
        assert (answer.text, answer.finish_reason) == (f"{left} + {right} = {int(left) + int(right)}", "eos")


def test_answers_in_the_readme_are_what_the_model_writes(model):
    shown = re.findall(r'^\$ edgeformer run tiny-llama --chat "(.+)"\n(.+)$', README.read_text(encoding="utf-8"), re.M)
    assert shown
    for question, answer in shown:
        assert model.chat([{"role": "user", "content": question}], max_new_tokens=32).finish().text == answer


def test_a_story_comes_to_its_end(model):
    story = model.generate("Once upon a time", max_new_tokens=300)
    assert story.finish_reason == "eos"
    assert story.text.endswith(".") and story.text.count(".") > 3


@pytest.mark.parametrize("preset", preset_names())
def test_a_model_card_counts_the_problems_of_its_evaluation(preset):
    page = (PRESETS / preset / "README.md").read_text(encoding="utf-8")
    asked = Counter(each["skill"] for each in questions(preset))
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$", page, re.M)
    assert {skill: int(total) for skill, _, total, _ in rows} == asked
    assert all(share == f"{100 * int(right) / int(total):.1f}" for _, right, total, share in rows)
    assert f" the {asked.total():,} held-out " in page
