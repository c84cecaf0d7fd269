"""The presets of the package do what their model cards and the README say, in edgeformer's runtime."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from slow_rows import slow_unless

from edgeformer.checkpoints.found_model import PRESETS, preset_names
from edgeformer.export import export_model
from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.questions import read_questions
from edgeformer.runtime.measure.evaluation.scores import wilson

README = Path(__file__).parents[1] / "README.md"
ASKED = 20
"""Of each skill."""


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle)


def held_out(preset):
    return read_questions(PRESETS / preset / "evaluation.jsonl")


def rows(preset):
    """Return the table of the model card: right answers and problems, by skill."""
    page = (PRESETS / preset / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$", page, re.M)


@pytest.mark.parametrize("preset", slow_unless(["tiny-embed"], preset_names()))
def test_held_out_problems_are_solved_as_often_as_the_card_says(preset, model, tmp_path):
    solver = model if preset == "tiny-llama" else load(export_model(preset, tmp_path / preset, verify=None).path)
    asked = held_out(preset)
    found = {score.skill: score for score in evaluate(solver, asked, limit=ASKED).skills}
    for skill, right, total, _ in rows(preset):
        # The score of a sample is close to that of all problems; a larger distance than this is not chance.
        assert int(right) / int(total) <= wilson(found[skill].right, found[skill].problems, 0.9999)[1]
    # Negative control: the answers to other questions are wrong.
    others = [replace(each, answer=other.answer) for each, other in pairwise([*asked, asked[0]])]
    assert evaluate(solver, others, limit=ASKED).total.exact < 0.3  # a fifth of those about pictures have one answer


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


def test_the_story_in_the_readme_is_what_the_model_writes(model):
    page = README.read_text(encoding="utf-8")
    (begun, shown), *others = re.findall(r'^\$ edgeformer run tiny-llama "(Once .+)"\n([^$]+)\n\$', page, re.M)
    assert not others and page.count(f'edgeformer run tiny-llama "{begun}"') == 2  # the first line of all, too
    assert model.generate(begun, max_new_tokens=300).text.split() == shown.split()


def test_a_story_comes_to_its_end(model):
    story = model.generate("Once upon a time", max_new_tokens=300)
    assert story.finish_reason == "eos"
    assert story.text.endswith(".") and story.text.count(".") > 3


@pytest.mark.parametrize("preset", preset_names())
def test_a_model_card_counts_the_problems_of_its_evaluation(preset):
    page = (PRESETS / preset / "README.md").read_text(encoding="utf-8")
    asked = Counter(each.skill for each in held_out(preset))
    assert {skill: int(total) for skill, _, total, _ in rows(preset)} == asked
    assert all(share == f"{100 * int(right) / int(total):.1f}" for _, right, total, share in rows(preset))
    assert f" the {asked.total():,} held-out " in page


def test_examples_tell_other_programs_their_token_ids(model):
    page = (Path(__file__).parents[1] / "examples" / "README.md").read_text(encoding="utf-8")
    given = re.findall(r'"(\d+(?: \d+)+)"', page)

    assert len(given) == 2  # C++ and C#
    assert [[int(token) for token in ids.split()] for ids in given] == [list(model.encode("Once upon a time"))] * 2
