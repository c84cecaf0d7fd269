"""The training data of tiny-llama: plain texts and chats in fixed proportions, none of them held out."""

from random import Random

from presets.corpora.dates import next_day, weekday
from presets.corpora.dialogue import END, STOP, SYSTEMS, persona, prompt, small_talk
from presets.corpora.lists import copying, sorting, sorting_near
from presets.corpora.numbers import addition, borrowing, carrying, number_to_words, subtraction, words_to_number
from presets.corpora.paragraphs import about, paragraph, question
from presets.corpora.problem import Generator, Problem, draw
from presets.corpora.stories import story

SKILLS: dict[str, tuple[Generator, float]] = {
    "addition": (addition, 26),
    "subtraction": (subtraction, 36),
    "number to words": (number_to_words, 7),
    "words to number": (words_to_number, 7),
    "sorting": (sorting, 20),
    "copying": (copying, 16),
    "dates": (next_day, 9),
    "weekdays": (weekday, 9),
    "questions": (question, 4),
    "system message": (persona, 2),
}
"""Generators of problems with one right answer, and the weight with which each is drawn."""

DRILLS: list[tuple[Generator, float]] = [(carrying, 5), (borrowing, 14), (sorting_near, 6)]
"""Hard problems of these skills that are rare in them, drawn additionally."""

STORIES, SMALL_TALK, INTERVIEWS = 0.02, 0.02, 0.05
"""Fractions of all documents.

Stories are long and largely random: more of them would keep the model from learning what has a right answer.
"""

PLAIN = 0.75
"""Fraction of the problems that are plain texts where possible: a chat takes twice the tokens."""

Document = list[tuple[str, bool]]
"""Pieces of a text, each with whether the model learns to write it or only reads it."""


def document(random: Random) -> Document:
    """Return one text to train on."""
    kind = random.random()
    if kind < STORIES:
        told = draw(story, random, held_out=False)
        return plain(told) if random.random() < 0.8 else chat(told)
    if kind < STORIES + SMALL_TALK:
        return chat(draw(small_talk, random, held_out=False))
    if kind < STORIES + SMALL_TALK + INTERVIEWS:
        return interview(random)
    problem = some_problem(random)
    if problem.plain and random.random() < PLAIN:
        return plain(problem)
    if random.random() < 0.15:  # a second turn
        return [*chat(some_problem(random)), ("\n", False), *chat(problem)]
    return chat(problem, random.choice(SYSTEMS) if random.random() < 0.2 else None)


def some_problem(random: Random) -> Problem:
    """Return a problem of any skill."""
    generators, weights = zip(*SKILLS.values(), *DRILLS, strict=True)
    return draw(random.choices(generators, weights)[0], random, held_out=False)


def interview(random: Random) -> Document:
    """Return a paragraph and a question about each of its facts, so that one reading teaches more."""
    while True:
        text, asked = paragraph(random)
        if not any(about(text, *each).held_out for each in asked):
            break
    if random.random() < PLAIN:
        pieces = [piece for each, answer in asked for piece in ((f" {each}", False), (f" {answer}", True))]
        return [(text, False), *pieces, (END, True)]
    first, *others = asked
    turns = chat(about(text, *first))
    for each, answer in others:
        turns += [("\n", False), (prompt(each), False), (answer + STOP, True)]
    return turns


def plain(problem: Problem) -> Document:
    """Return the problem as a text to continue."""
    assert problem.plain is not None
    asked, answer = problem.plain
    return [(asked, False), (answer + END, True)]


def chat(problem: Problem, system: str | None = None) -> Document:
    """Return the problem as a chat; system: a first message, if the problem has none of its own."""
    return [(prompt(problem.question, problem.system or system), False), (problem.answer + STOP, True)]
