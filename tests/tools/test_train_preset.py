"""Presets: their data, their training, and the folder that is written."""

import functools
import json
import os
import random
import re
import signal
import sys
from dataclasses import replace
from datetime import date
from random import Random

import jinja2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from presets import differentiable, packing, scoring, tiny_llama, tiny_translate, tiny_vision, train_preset, training
from presets.corpora import (
    bilingual_numbers,
    bilingual_sentences,
    dates,
    lists,
    numbers,
    paragraphs,
    paraphrases,
    stories,
)
from presets.corpora.dialogue import CHAT_TEMPLATE, END, START, STOP, prompt, turn
from presets.corpora.mixture import DRILLS, SKILLS, document, interview
from presets.corpora.problem import Problem, draw, draw_held_out, is_held_out
from presets.pictures import hints
from presets.pictures import questions as about_pictures
from presets.pictures import scenes as pictures
from tokenizers import Tokenizer
from torch import nn

from edgeformer import ops
from edgeformer.checkpoints.source import open_source
from edgeformer.families import read_model_config

SMALL = tiny_llama.CONFIG | {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.make_tokenizer(0)


def problems(generator, count=300, seed=0):
    source = Random(seed)
    return [generator(source) for _ in range(count)]


# Data


@pytest.mark.parametrize("skill", SKILLS)
def test_no_held_out_problem_is_trained_on(skill):
    generator, _ = SKILLS[skill]
    source = Random(1)
    trained = {draw(generator, source, held_out=False).key for _ in range(400)}
    held_out = {problem.key for problem in draw_held_out(generator, Random(2), 20)}

    assert held_out and not trained & held_out
    assert not any(is_held_out(f"{skill}: {key}") for key in trained)


def test_the_split_is_the_same_in_every_run():
    assert [number for number in range(60) if is_held_out(f"addition: 1 {number}")] == [9, 17, 20, 23]


def test_a_document_holds_no_held_out_prompt():
    """This holds for a second turn and for a plain text too."""
    held_out = {
        text
        for generator, _ in SKILLS.values()
        for problem in draw_held_out(generator, Random(3), 100)
        for text in (problem.question, *([problem.plain[0]] if problem.plain else []))
        if problem.system is None  # which is a part of the question
    }
    source = Random(4)
    asked = [text for _ in range(3000) for text, learned in document(source) if not learned]
    questions = [part for text in asked for part in text.replace(STOP, START).split(START)]

    assert len(questions) > 3000
    assert not held_out & {question.removeprefix("user\n") for question in questions}
    assert held_out & {problem.question for problem in problems(SKILLS["weekdays"][0], 3000)}  # they can be told


def test_arithmetic_is_right():
    sums, differences = (numbers.addition, numbers.carrying), (numbers.subtraction, numbers.borrowing)
    for generator, sign in (*((each, 1) for each in sums), *((each, -1) for each in differences)):
        for problem in problems(generator):
            left, _, right = problem.answer.partition(" = ")
            a, b = (int(part) for part in left.replace("-", "+").split(" + "))
            assert a + sign * b == int(right) >= 0
            assert f"{problem.plain[0]}{problem.plain[1]}" == problem.answer
            assert str(a) in problem.question and str(b) in problem.question


def test_drills_are_of_the_skills_and_have_more_of_what_is_rare():
    def tens(problem):
        return [int(number) // 10 % 10 for number in problem.key.split()[:2]]

    def alike(generator):
        return sum(abs(a - b) <= 1 for a, b in map(tens, problems(generator)))

    def nines(generator):
        return sum(8 <= a + b <= 10 for a, b in map(tens, problems(generator)))

    def one_digit(generator):
        return sum(len(number) == 1 for each in problems(generator) for number in each.answer.split(", "))

    assert {problems(generator, 1)[0].skill for generator, _ in DRILLS} <= set(SKILLS)
    assert alike(numbers.borrowing) > 1.5 * alike(numbers.subtraction)
    assert nines(numbers.carrying) > 1.5 * nines(numbers.addition)
    assert one_digit(lists.sorting_near) > 2 * one_digit(lists.sorting)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (20, "twenty"), (45, "forty-five"), (100, "one hundred"),
        (345, "three hundred forty-five"), (1000, "one thousand"), (9012, "nine thousand twelve"),
        (7340, "seven thousand three hundred forty"),
    ],
)  # fmt: skip
def test_numbers_in_words(number, words):
    assert numbers.in_words(number) == words


def test_every_number_has_words_of_its_own():
    assert len({numbers.in_words(number) for number in range(numbers.LARGEST + 1)}) == numbers.LARGEST + 1


def test_sorted_lists_are_sorted_copies():
    for problem in problems(lists.sorting) + problems(lists.sorting_near):
        falling = "largest" in problem.question or "falling" in problem.question
        found = [int(number) for number in problem.answer.split(", ")]
        asked = [int(number) for number in problem.question.partition(": ")[2].split(", ")]
        assert found == sorted(asked, reverse=falling)
    for generator in (lists.sorting, lists.sorting_near):
        assert {len(problem.answer.split(", ")) for problem in problems(generator)} == {3, 4, 5}


def test_the_day_after_the_last_of_february():
    answers = {problem.key: problem.answer for problem in problems(dates.next_day, 20_000)}
    leap = [(key, answer) for key, answer in answers.items() if key.startswith("after 28 February")]

    assert len(leap) > 50
    for key, answer in leap:
        year = int(key.split()[-1])
        assert answer == (f"29 February {year}" if year % 4 == 0 else f"1 March {year}")
    assert answers["before 1 January 2000"] == "31 December 1999"


def test_weekdays_follow_the_calendar():
    for problem in problems(dates.weekday):
        day, days = problem.key.split()
        monday = date(2024, 1, 1)
        start = monday.toordinal() + dates.DAYS.index(day)
        found = dates.DAYS[date.fromordinal(start + int(days)).weekday()]
        assert problem.answer.removesuffix(" too.").removesuffix(".").endswith(f" {found}")
        assert problem.answer.endswith(" too.") == (int(days) % 7 == 0)


def test_answers_about_a_paragraph_say_what_it_says():
    """In its order, but for a sentence that begins with "It"; and one sentence alone can be meant."""
    orders = set()
    for problem in problems(paragraphs.question, 1000):
        text, asked = problem.question[: problem.question.rindex(". ") + 1], problem.question.rpartition(". ")[2]
        sentences = [sentence.removesuffix(".") for sentence in text.lower().split(". ")]
        said = problem.answer.removesuffix(".").lower()
        meant = [sentence for sentence in sentences if said in sentence]
        if not said.startswith("it "):
            assert len(meant) == 1
            orders.add((asked.split()[0], meant[0].startswith(said)))
        else:
            words = said.split()[2:]
            assert sum(set(words) <= set(sentence.split()) for sentence in sentences) >= 1
        assert 2 <= len(sentences) <= 4
    assert {("Who", True), ("Whose", True), ("What", True), ("Where", True), ("When", False)} <= orders


def test_an_interview_asks_once_about_every_sentence():
    source = Random(5)
    for _ in range(300):
        pieces = interview(source)
        text = "".join(piece for piece, _ in pieces)
        learned = [piece.removesuffix(END).removesuffix(STOP).strip() for piece, learn in pieces if learn]
        learned = [answer for answer in learned if answer]
        paragraph = text.split("?")[0].removeprefix(f"{START}user\n")
        assert len(learned) == text.count("?") == paragraph.count(".")
        assert pieces[0] == (pieces[0][0], False) and all(answer.endswith(".") for answer in learned)


def test_stories_are_whole_and_of_many_kinds():
    told = [problem.answer for problem in problems(stories.story, 500)]

    assert len(set(told)) == 500
    for text in told:
        assert "{" not in text and "  " not in text and text[0].isupper() and text[-1] in '."!?'
        assert 5 <= sum(text.count(mark) for mark in ".!?") <= 25
    assert len({text.split()[0] for text in told}) > 20  # some begin with a name


def test_a_chat_is_what_the_template_makes():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    render = jinja2.Environment().from_string(CHAT_TEMPLATE).render

    assert render(messages=messages, add_generation_prompt=True) == prompt("Hello!", "Be kind.")
    assert render(messages=messages[:1]) == turn("system", "Be kind.")
    assert json.dumps(CHAT_TEMPLATE) == json.dumps(tiny_llama.FILES["chat_template.jinja"])


@pytest.mark.parametrize(
    ("value", "french", "german"),
    [
        (1, "un", "eins"), (21, "vingt et un", "einundzwanzig"), (71, "soixante et onze", "einundsiebzig"),
        (80, "quatre-vingts", "achtzig"), (81, "quatre-vingt-un", "einundachtzig"), (95, "quatre-vingt-quinze", None),
        (101, "cent un", "einhunderteins"), (200, "deux cents", "zweihundert"), (201, "deux cent un", None),
        (1000, "mille", "eintausend"), (3016, "trois mille seize", "dreitausendsechzehn"),
    ],
)  # fmt: skip
def test_numbers_in_french_and_german(value, french, german):
    assert bilingual_numbers.in_french(value) == french
    assert german is None or bilingual_numbers.in_german(value) == german


def test_every_number_has_words_of_its_own_in_every_language():
    for words in (bilingual_numbers.in_french, bilingual_numbers.in_german):
        assert len({words(value) for value in range(numbers.LARGEST + 1)}) == numbers.LARGEST + 1


NOUNS = {noun.en: noun for noun in (*bilingual_sentences.BEINGS, *bilingual_sentences.THINGS)}
KINDS = {each.en: each for each in [*bilingual_sentences.OF_BEINGS, *bilingual_sentences.OF_THINGS]}


@pytest.mark.parametrize(
    ("noun", "article", "adjective", "case", "expected"),
    [
        ("apple", "a", None, "accusative", ("an apple", "une pomme", "einen Apfel")),
        ("man", "the", None, "nominative", ("the man", "l'homme", "der Mann")),
        ("man", "the", "old", "accusative", ("the old man", "le vieil homme", "den alten Mann")),
        ("tree", "a", "beautiful", "nominative", ("a beautiful tree", "un bel arbre", "ein schöner Baum")),
        ("picture", "the", "red", "accusative", ("the red picture", "l'image rouge", "das rote Bild")),
        ("car", "a", "white", "nominative", ("a white car", "une voiture blanche", "ein weißes Auto")),
        ("girl", "a", "young", "nominative", ("a young girl", "une jeune fille", "ein junges Mädchen")),
        ("boy", "the", None, "accusative", ("the boy", "le garçon", "den Jungen")),
    ],
)
def test_articles_adjectives_and_nouns_agree(noun, article, adjective, case, expected):
    found = bilingual_sentences.noun_phrase(NOUNS[noun], article, KINDS.get(adjective), case)
    assert tuple(found.values()) == expected


@pytest.mark.parametrize(
    ("hour", "minute", "expected"),
    [
        (3, 0, ("three o'clock", "trois heures", "drei Uhr")),
        (1, 15, ("quarter past one", "une heure et quart", "Viertel nach eins")),
        (12, 30, ("half past twelve", "douze heures et demie", "halb eins")),
        (12, 45, ("quarter to one", "une heure moins le quart", "Viertel vor eins")),
        (4, 35, ("twenty-five to five", "cinq heures moins vingt-cinq", "fünf nach halb fünf")),
    ],
)
def test_times_of_day(hour, minute, expected):
    found = (
        bilingual_numbers.english_time(hour, minute),
        bilingual_numbers._french_time(hour, minute),
        bilingual_numbers._german_time(hour, minute),
    )
    assert found == expected


@pytest.mark.parametrize("skill", tiny_translate.SKILLS)
def test_a_text_has_one_translation(skill):
    """Otherwise no translator could always be right."""
    source = Random(6)
    meanings = [tiny_translate.SKILLS[skill][0](source) for _ in range(3000)]
    for start, goal in tiny_translate.DIRECTIONS:
        translations = {}
        for meaning in meanings:
            assert translations.setdefault(meaning[start], meaning[goal]) == meaning[goal]


@pytest.mark.parametrize("kind", paraphrases.PATTERNS)
def test_paraphrases_differ_in_words_and_share_their_meaning(kind):
    source = Random(7)
    pairs = [paraphrases.pair(source, kind) for _ in range(500)]

    assert all(each.question != each.answer for each in pairs)
    assert not any("{" in each.question + each.answer for each in pairs)
    assert not any(f" a {vowel}" in each.question + each.answer for each in pairs for vowel in "aeiou")
    assert len({each.key for each in pairs}) > 250


@pytest.mark.parametrize("drawn", [tiny_translate.translation, paraphrases.pair], ids=["translate", "embed"])
def test_no_held_out_meaning_is_trained_on(drawn):
    trained = {draw(drawn, Random(seed), held_out=False).key for seed in range(300)}

    assert not trained & {problem.key for problem in draw_held_out(drawn, Random(8), 100)}


# Pictures


def scenes(count=300, seed=9, things=None):
    source = Random(seed)
    return [pictures.scene(source, things) for _ in range(count)]


def test_painted_tiles_are_those_of_drawn_pictures():
    drawn = scenes(60, things=1)
    painted = tiny_vision.normalized(pictures.Painter().paint(drawn)).numpy()
    expected = np.stack([tiny_vision.pixel_values(pictures.draw(shown)).numpy() for shown in drawn])
    assert np.abs(painted - expected).max() < 5 / 127.5  # Pillow's resize has other weights at the edge of a picture
    for shown, tiles in zip(drawn, painted, strict=True):
        [thing] = shown.things
        changes = np.abs(tiles[:4] - tiles[0, :, :1, :1]).max((1, 2, 3))  # the thing is in one tile alone
        assert changes.argmax() == about_pictures.quarter(thing) and (changes > 0.05).sum() == 1
    turned = np.abs(painted - painted.swapaxes(-1, -2)).max((1, 2, 3, 4))
    assert (turned > 0.4).mean() > 0.8  # negative control


def test_states_of_cells_are_named_by_what_is_drawn_there():
    drawn = scenes(40)
    painted = pictures.Painter().paint(drawn)
    # The cells of a tile by its rows, as pixel shuffle orders the squares of patches: [N, 16, 3, 32, 32].
    cells = painted[:, :4].reshape(-1, 4, 3, 2, 32, 2, 32).transpose(0, 1, 3, 5, 2, 4, 6).reshape(-1, 16, 3, 32, 32)
    colours, kinds = (each.numpy() for each in tiny_vision.named(drawn))
    shown = np.ptp(cells.reshape(-1, 16, 3 * 32 * 32), -1) > 30
    assert (shown == (colours != packing.IGNORED)).all() and (shown == (kinds != len(pictures.KINDS))).all()
    blue, black = (cells[colours == list(pictures.COLOURS).index(name)].min((-1, -2)) for name in ("blue", "black"))
    assert (blue[:, 2] > blue[:, 0] + 60).all() and (black[:, 2] < black[:, 0] + 60).all()


def test_answers_are_those_of_where_things_are_drawn():
    source, seen = Random(10), dict.fromkeys(about_pictures.SKILLS, 0)
    for shown in scenes():
        for skill in about_pictures.SKILLS:
            found = about_pictures.ask(source, shown, skill)
            if found is not None:
                seen[skill] += 1
                check = {"relation": is_beside, "count": is_counted}.get(skill)
                assert check is None or check(shown, found.question, found.answer), found
    assert min(seen.values()) > 50


def is_beside(shown, question, answer):
    """Return whether a thing of the answer is nearest to the one that the question means, in pixels."""
    [meant] = (one for one in shown.things if question.endswith((f"the {one.name}?", f"the {one.kind}?")))
    across = "left" in question or "right" in question
    sign = 1 if any(word in question for word in ("right", "below", "under")) else -1
    near: list[tuple[int, str]] = []
    for one in shown.things:
        ahead, aside = (one.x - meant.x, one.y - meant.y) if across else (one.y - meant.y, one.x - meant.x)
        if abs(aside) < 32 < sign * ahead:
            near.append((sign * ahead, f"a {one.name}"))
    return answer == (min(near)[1] if near else "nothing")


def is_counted(shown, question, answer):
    words = question.removeprefix("How many ").removesuffix(" are there?")
    if place := re.fullmatch(r"things are at the (top|bottom) (left|right)\?", words):
        many = sum(
            (one.y < 128 - one.size / 2, one.x < 128 - one.size / 2) == (place[1] == "top", place[2] == "left")
            for one in shown.things
        )
        return about_pictures.NUMBERS[many] == answer
    names = [
        {"things", f"{one.kind}s", f"{one.kind}es", f"{one.colour} things", "digits" if one.kind.isdigit() else ""}
        for one in shown.things
    ]
    return about_pictures.NUMBERS[sum(words in each for each in names)] == answer


def test_the_cells_of_an_answer_are_those_of_what_it_names():
    """And what a question means is where its words are, so that no hint misleads."""
    source = Random(12)
    for shown in scenes(100):
        names = {thing.cell: f"a {thing.name}" for thing in shown.things}
        for skill in about_pictures.SKILLS:
            found = about_pictures.ask(source, shown, skill)
            if found is None:
                continue
            listed = ", ".join(names[cell] for cells in found.told for cell in sorted(cells)) or "nothing"
            if skill in ("describe", "relation") or found.question.startswith("What is at"):
                assert found.answer == listed, found
            if skill == "count":
                assert found.answer == about_pictures.NUMBERS[len(found.told[0])] and found.told == (found.meant,)
            if skill in ("colour", "relation", "digit"):
                [cell] = found.meant
                colour, kind = names[cell].split()[1:]
                assert skill == "digit" or found.question.endswith((f"the {kind}?", f"the {colour} {kind}?"))
                assert found.answer == {"colour": colour, "digit": kind}.get(skill, found.answer)


def test_pointers_stand_where_a_thing_of_an_answer_begins():
    tokens = train_preset.RECIPES["tiny-vision"].make_tokenizer(0)
    first, second = frozenset({5}), frozenset({3})
    turns = [
        about_pictures.Asked("relation", "What is above the star?", "nothing", first, (frozenset(),)),
        about_pictures.Asked(
            "describe", "What do you see?", "a black 9, a red square", first | second, (first, second)
        ),
    ]
    batch = tiny_vision.encode_turns(tokens, [[turns]])
    ids, pointers = batch.ids[0, 0], batch.pointers
    said = [tokens.decode([token], False) for token in ids]

    assert [said[place] for place in pointers.asks[0, 0].nonzero()] == [tiny_vision.ASSISTANT] * 2
    assert [said[place] for place in pointers.tells[0, 0].nonzero()] == [tiny_vision.ASSISTANT] * 2 + [","]
    assert [set(row.nonzero().flatten().tolist()) for row in pointers.told[pointers.tells]] == [set(), {5}, {3}]
    assert [set(row.nonzero().flatten().tolist()) for row in pointers.meant[pointers.asks]] == [{5}, {5, 3}]
    after = [ids[place + 1] for place in range(len(ids) - 1) if batch.targets[0, 0, place] != packing.IGNORED]
    assert after == [target for target in batch.targets[0, 0] if target != packing.IGNORED]


def test_words_are_told_which_cells_they_name():
    tokens = train_preset.RECIPES["tiny-vision"].make_tokenizer(0)
    ids = tokens.encode("Are two red crosses, a star and the 7 above the circle?").ids
    numbers = hints.word_numbers(tokens)[ids]
    words = [*pictures.COLOURS, *pictures.KINDS]
    assert [words[number] for number in numbers if number >= 0] == ["red", "cross", "star", "7", "circle"]
    things = [pictures.place(kind, "red", cell, 40, (255, 0, 0)) for kind, cell in (("star", 3), ("7", 6), ("star", 9))]
    shown = hints.cells_of_words([pictures.Scene(tuple(things), (255, 255, 255))])[0, numbers[numbers >= 0]]
    assert [set(row.nonzero().flatten().tolist()) for row in shown] == [{3, 6, 9}, set(), {3, 9}, {6}, set()]


def test_hints_cost_nothing_where_states_tell_them():
    drawn, size = scenes(6), 192
    ranks = [sorted(thing.cell for thing in about_pictures.in_quarters(shown)) for shown in drawn]
    assert any(len(each) > 2 for each in ranks)
    places = hints.directions("place", hints.CELLS, size)[:, pictures.cells_by_tile()].T.expand(len(drawn), -1, -1)
    silent = torch.randn(len(drawn), hints.CELLS, size, generator=torch.Generator().manual_seed(0))
    told = hints.loss_of_cells([places, silent], drawn)
    assert told < hints.loss_of_cells([places.flip(1), silent], drawn) - 1
    assert told < hints.loss_of_cells([silent, silent], drawn) - 0.4


def test_neighbours_of_held_out_pictures_are_new():
    def neighbours(shown):
        return {
            (thing.name, direction, other.name)
            for thing in shown.things
            for direction in ("right of", "below")
            if (other := shown.beside(thing, direction))
        }

    source = Random(11)
    trained = set().union(*(neighbours(pictures.draw_scene(source, held_out=False)) for _ in range(2000)))
    held_out = [neighbours(pictures.draw_scene(source, held_out=True)) for _ in range(50)]
    assert all(pairs - trained for pairs in held_out if pairs) and any(held_out) and trained


def test_questions_about_a_picture_do_not_see_others():
    recipe = train_preset.RECIPES["tiny-vision"]
    _, config = recipe.model()
    module = training.evaluation_module(training.initial_module(config, 0), config)
    tokens, pixels = recipe.make_tokenizer(0), tiny_vision.normalized(pictures.Painter().paint(scenes(1)))
    prefix = torch.tensor(tiny_vision.prefix_ids(tokens))

    def states(*conversations):
        batch = tiny_vision.encode_turns(tokens, [conversations])
        with differentiable.differentiable_ops(), torch.no_grad():
            return tiny_vision.read(module, pixels, prefix, batch.ids)[1][batch.targets != packing.IGNORED]

    one, two, further = (
        about_pictures.Asked("", question, answer, frozenset(), ())
        for question, answer in (
            ("What is red?", "a star"), ("Where is the 7?", "top left"), ("What do you see?", "a red 7"),
        )
    )  # fmt: skip
    together = states([one], [two, further])
    torch.testing.assert_close(together, torch.cat((states([one]), states([two, further]))))
    apart = states([one], [two], [further])
    assert not torch.allclose(together, apart, atol=1e-3)


# Tokens


def test_digits_are_tokens_and_any_text_comes_back(tokenizer):
    text = "1234 zażółć 你好 <tag> “quoted”\n"

    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode(f"a{STOP}").ids[-1] == tiny_llama.FILES["generation_config.json"]["eos_token_id"][1]


def test_pieces_encode_as_the_whole_text_does(tokenizer):
    source = Random(5)
    for _ in range(200):
        pieces = document(source)
        assert packing.encode(tokenizer, pieces).ids == tokenizer.encode("".join(text for text, _ in pieces)).ids


def test_only_answers_are_learned(tokenizer):
    tokens = packing.encode(tokenizer, [("12 + 34 =", False), (f" 46{END}", True)])

    assert tokenizer.decode([token for token in tokens.targets if token != packing.IGNORED], False) == f" 46{END}"
    assert [ids for ids, target in zip(tokens.ids[1:], tokens.targets, strict=False) if target != -100] == [
        target for target in tokens.targets if target != -100
    ]


def test_rows_hold_every_document_once():
    documents = [packing.Tokens([number] * size, [number] * size) for number, size in enumerate((3, 7, 2, 5, 6), 1)]
    rows = packing.pack(documents, 8)

    assert rows.ids.shape == (3, 8)
    assert sorted(rows.ids[rows.documents > 0].tolist()) == sorted(token for each in documents for token in each.ids)
    assert (rows.targets[rows.documents == 0] == packing.IGNORED).all()
    for row in range(3):
        for number in range(1, rows.documents[row].max() + 1):
            assert len(set(rows.ids[row][rows.documents[row] == number].tolist())) == 1


# Differentiable ops


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def attend(causal=True, bias=None, mask=None):
    query, key, value = normal(2, 6, 32), normal(2, 6, 16), normal(2, 6, 17)[..., :16]
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2]) if mask is None else mask
    output, *_ = ops.group_query_attention(
        query, key, value, None, None, mask, 4, 2, 0.3, attention_bias=bias, causal=causal
    )
    return output[0], output[1, :4]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", [None, normal(1, 4, 6, 6)], ids=["plain", "bias"])
def test_attention_is_that_of_the_op(causal, bias):
    expected = attend(causal, bias)
    with differentiable.differentiable_ops():
        found = attend(causal, bias)
    other = attend(not causal, bias)

    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found[0], other[0])


def test_the_other_ops_are_those_of_edgeformer():
    x, weight, positions = normal(2, 5, 16), normal(16), torch.arange(5).unsqueeze(0)
    cos, sin = normal(9, 4), normal(9, 5)[:, :4]
    key, mask = normal(2, 2, 7, 8), torch.tensor([[1] * 7, [1] * 3 + [0] * 4])

    def run():
        return (
            ops.rms_norm(x, weight, 1e-5),
            ops.rms_norm(x, None, 1e-5),
            ops.rotary_embedding(x, positions, cos, sin, 2, False),
            ops.cross_attention(x, key, key + 1, mask, 0.5),
        )

    expected = run()
    with differentiable.differentiable_ops():
        torch.testing.assert_close(run(), expected)
        assert not torch.allclose(ops.rms_norm(x, weight, 1e-2), expected[0])
        with pytest.raises(ValueError, match="partial"):
            ops.rotary_embedding(x, positions, cos[:, :2], sin[:, :2], 2, False)
        with pytest.raises(ValueError, match="windows"):
            ops.group_query_attention(x, x, x, None, None, mask[:, :5], 2, 2, 1.0, window=3)


def test_texts_behind_a_prefix_are_those_of_the_op():
    prefix, texts, length = 5, 3, 4
    query, key, value = normal(2, 17, 32), normal(2, 17, 16), normal(2, 17, 17)[..., :16]
    mask = torch.ones(2, 17, dtype=torch.int64)
    with differentiable.shared_prefix(prefix, texts):
        together, *_ = ops.group_query_attention(query, key, value, None, None, mask, 4, 2, 0.3)
        all_ways, *_ = ops.group_query_attention(query, query, query, None, None, mask, 4, 4, 0.3, causal=False)
        with pytest.raises(ValueError, match="without caches"):
            ops.group_query_attention(query, key, value, None, None, mask, 4, 2, 0.3, window=3)
    for first in range(prefix, prefix + texts * length, length):
        places = [*range(prefix), *range(first, first + length)]
        alone, *_ = ops.group_query_attention(
            query[:, places], key[:, places], value[:, places], None, None, mask[:, places], 4, 2, 0.3
        )
        torch.testing.assert_close(together[:, places], alone)
    whole, *_ = ops.group_query_attention(query, key, value, None, None, mask, 4, 2, 0.3)
    assert not torch.allclose(together[:, -length:], whole[:, -length:])  # negative control
    expected, *_ = ops.group_query_attention(query, query, query, None, None, mask, 4, 4, 0.3, causal=False)
    torch.testing.assert_close(all_ways, expected)


def small_module(dtype=torch.float32):
    _, config = read_model_config(SMALL)
    return training.evaluation_module(training.initial_module(config, 0), config).to(dtype)


def test_packed_documents_do_not_see_each_other(tokenizer):
    module = small_module()
    two = [packing.encode(tokenizer, [(text, True)]) for text in ("One little bird sang.", "7 + 8 = 15")]
    with differentiable.differentiable_ops(), torch.no_grad():
        apart = [tiny_llama.predictions(module, packing.pack([each], 32))[0] for each in two]
        together, _ = tiny_llama.predictions(module, packing.pack(two, 32))
        rows = packing.pack(two, 32)
        rows.documents[rows.documents > 0] = 1
        mixed, _ = tiny_llama.predictions(module, rows)

    torch.testing.assert_close(together, torch.cat(sorted(apart, key=len, reverse=True)))
    assert not torch.allclose(together, mixed, atol=1e-3)


# Training


def options(**changed):
    return training.Options(**{"steps": 4, "warmup": 2, "learning_rate": 0.01} | changed)


def trainer(steps, **changed):
    _, config = read_model_config(SMALL)
    made = training.Trainer(config, options(**changed))
    run(made, steps)
    return made


def run(made, steps):
    for _ in range(steps):
        made.train_step(toy_loss)


def toy_loss(module: nn.Module, source: random.Random, given: training.Options):
    rows = packing.pack([packing.Tokens([5, 6, 7, source.randrange(9)], [6, 7, 8, packing.IGNORED])], 8)
    return training.cross_entropy(*tiny_llama.predictions(module, rows), given.z_loss)


def test_the_loss_falls_and_the_seed_decides():
    made = trainer(4)

    assert made.losses[-1] < made.losses[0] - 1
    assert made.losses == trainer(4).losses
    assert made.losses[0] != trainer(1, seed=1).losses[0]
    assert made.losses[0] < trainer(1, z_loss=1.0).losses[0]
    assert {parameter.dtype for parameter in made.module.parameters()} == {torch.bfloat16}


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    whole, first = trainer(4), trainer(2)
    first.save(tmp_path / "checkpoint.pt")
    second = trainer(0)
    second.resume(tmp_path / "checkpoint.pt")
    run(second, 2)

    assert second.losses == whole.losses
    for mine, theirs in zip(second.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(train_preset.EdgeformerError, match="was written with other options"):
        trainer(0, seed=3).resume(tmp_path / "checkpoint.pt")


def test_the_learning_rate_warms_up_and_falls_to_nothing():
    given = options(steps=100, warmup=10)
    rates = [training.schedule(step, given) for step in range(100)]

    assert rates[0] == 0.1 and rates[9] == rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] < 0.001

    sooner = options(steps=40, warmup=10, horizon=100, cooldown=20)
    cut = [training.schedule(step, sooner) for step in range(40)]
    assert cut[:21] == rates[:21] and cut[30] == rates[30] / 2 and cut[39] == rates[39] / 20


def test_a_loss_that_is_no_number_is_an_error():
    with pytest.raises(train_preset.EdgeformerError, match=r"the loss of step 0 is nan; try a lower --learning-rate"):
        trainer(0).train_step(lambda *_: toy_loss(*_) * float("nan"))


def test_exact_match_wants_every_token():
    targets = torch.tensor([[-100, 3, 4], [-100, 9, -100], [-100, -100, -100]])
    logits = torch.eye(16)[[3, 4, 9]]

    assert scoring.right_rows(logits, targets) == [True, True, True]
    assert scoring.right_rows(torch.eye(16)[[3, 5, 9]], targets) == [False, True, True]


# The folder


SMALLER = {
    "tiny-llama": SMALL,
    "tiny-translate": {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    },
    "tiny-embed": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "tiny-vision": {
        "vision_config": tiny_vision.CONFIG["vision_config"] | {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        },
        "text_config": tiny_vision.CONFIG["text_config"] | {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16,
        },
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch):
    """Return presets that train in a second: few parameters, small batches, few questions."""
    for recipe in list(train_preset.RECIPES.values()):
        module = sys.modules[recipe.loss.__module__]
        small = replace(
            recipe,
            hf_config=recipe.hf_config | SMALLER[recipe.name],
            make_tokenizer=functools.cache(recipe.make_tokenizer),
        )
        monkeypatch.setitem(train_preset.RECIPES, recipe.name, small)
        for name, value in {"QUESTIONS": 2, "ROWS": 1, "PICTURES": 2, "PAIRS": 8, "DRAWN": 16}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def make(tmp_path, *arguments, preset="tiny-llama"):
    line = [preset, "--output", tmp_path / preset, "--work", tmp_path / "work", "--threads", 1, *arguments]
    return CliRunner().invoke(train_preset.main, [str(part) for part in line])


def test_a_preset_is_a_model_folder_with_a_card(tmp_path):
    result = make(tmp_path, "--steps", 2, "--warmup", 1)

    assert result.exit_code == 0, result.output
    folder = tmp_path / "tiny-llama"
    source = open_source(folder)
    assert {weight.dtype for weight in source.weights().values()} == {torch.bfloat16}
    questions = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert len(questions) == 2 * len(SKILLS) and questions[1]["prompt"].endswith(" =")
    page = (folder / "README.md").read_text()
    assert "python tools/presets/train_preset.py tiny-llama --steps 2 --warmup 1" in page
    assert "| addition | 0 | 2 | 0.0 % |" in page and "{" not in page
    assert "a 0.1 M parameter Llama" in json.loads((folder / "preset.json").read_text())["description"]
    assert (tmp_path / "work/loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("preset", "auto", "ours", "theirs"),
    [
        ("tiny-llama", "LlamaForCausalLM", "blocks.0.feed_forward.up", "model.layers.0.mlp.up_proj"),
        ("tiny-translate", "MarianMTModel", "encoder.embedding", "model.decoder.embed_tokens"),
        ("tiny-embed", "BertModel", "blocks.0.attention.key", "encoder.layer.0.attention.self.key"),
        (
            "tiny-vision",
            "Idefics3ForConditionalGeneration",
            "tower.blocks.0.attention.key",
            "model.vision_model.encoder.layers.0.self_attn.k_proj",
        ),
    ],
)
def test_transformers_reads_the_folder(tmp_path, preset, auto, ours, theirs):
    import transformers

    assert make(tmp_path, "--steps", 1, preset=preset).exit_code == 0
    folder = tmp_path / preset
    module, found = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)

    assert {name.rpartition(".")[0] for names in found.values() for name in names} <= {"pooler.dense"}
    assert torch.equal(module.get_submodule(theirs).weight, open_source(folder).weights()[f"{ours}.weight"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("345")["input_ids"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode("345").ids
    if preset == "tiny-llama":
        messages = [{"role": "user", "content": "Hi!"}]
        chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert chat == prompt("Hi!")
    if preset == "tiny-vision":
        drawn = pictures.draw(scenes(1)[0])
        said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is red?"}]}]
        chat = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        assert chat == tiny_vision.prompt("What is red?")
        processor = transformers.Idefics3Processor(
            transformers.Idefics3ImageProcessorPil.from_pretrained(folder), tokenizer, image_seq_len=4
        )
        read = processor(text=chat, images=[drawn], return_tensors="pt")
        tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        asked = tokens.encode(f"What is red?{tiny_vision.ASSISTANT}").ids
        assert read["input_ids"][0].tolist() == tiny_vision.prefix_ids(tokens) + asked
        torch.testing.assert_close(read["pixel_values"][0], tiny_vision.pixel_values(drawn))


def test_an_encoder_learns_with_the_head_of_its_folder(tmp_path):
    assert make(tmp_path, "--steps", 1, preset="tiny-embed").exit_code == 0

    _, config = train_preset.RECIPES["tiny-embed"].model()
    assert open_source(tmp_path / "tiny-embed").config == config


def test_a_run_of_other_options_is_refused(tmp_path):
    assert make(tmp_path, "--steps", 1).exit_code == 0
    result = make(tmp_path, "--steps", 2)

    assert result.exit_code == 1
    assert "was written with other options" in result.stderr


def test_ctrl_c_writes_a_checkpoint_after_the_step(tmp_path, monkeypatch):
    step = training.Trainer.train_step

    def interrupted(self, loss_of, **options):
        if self.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, loss_of, **options)

    monkeypatch.setattr(training.Trainer, "train_step", interrupted)
    result = make(tmp_path, "--steps", 3)
    assert result.exit_code == 1
    assert "stopped at step 2; the same command continues from" in result.stderr
    assert not (tmp_path / "tiny-llama").exists()

    result = make(tmp_path, "--steps", 3)
    assert result.exit_code == 0, result.output
    assert "going on at step 2 of 3" in result.stderr


def test_a_problem_says_itself_whether_it_is_held_out():
    held, other = (Problem("addition", f"1 {number}", "", "") for number in (17, 18))
    assert held.held_out and not other.held_out
