"""What tiny-llama reads: plain texts and chats in fixed parts, all of them from the training side of the split."""

from random import Random

from presets.dates import next_day, weekday
from presets.dialogue import END, STOP, SYSTEMS, persona, prompt, small_talk
from presets.lists import copying, sorting
from presets.numbers import addition, number_to_words, subtraction, words_to_number
from presets.paragraphs import question
from presets.problem import Generator, Problem, draw
from presets.stories import story

SKILLS: dict[str, tuple[Generator, float]] = {
    "addition": (addition, 32),
    "subtraction": (subtraction, 36),
    "number to words": (number_to_words, 6),
    "words to number": (words_to_number, 6),
    "sorting": (sorting, 16),
    "copying": (copying, 12),
    "dates": (next_day, 9),
    "weekdays": (weekday, 8),
    "questions": (question, 12),
    "system message": (persona, 2),
}
"""Generators of problems with one right answer, and how often each is drawn."""

STORIES, SMALL_TALK = 0.05, 0.02
"""Parts of all documents. Stories are so much longer than the rest that they are a fifth of all tokens."""

PLAIN = 0.6
"""Part of the problems that are plain texts where they can be: a chat takes twice the tokens."""

Document = list[tuple[str, bool]]
"""Pieces of a text, each with whether the model learns to write it, or only reads it."""


def document(random: Random) -> Document:
    """One text to train on."""
    kind = random.random()
    if kind < STORIES:
        told = draw(story, random, held_out=False)
        return plain(told) if random.random() < 0.8 else chat(told)
    if kind < STORIES + SMALL_TALK:
        return chat(draw(small_talk, random, held_out=False))
    problem = some_problem(random)
    if problem.plain and random.random() < PLAIN:
        return plain(problem)
    if random.random() < 0.15:  # a second turn
        return [*chat(some_problem(random)), ("\n", False), *chat(problem)]
    return chat(problem, random.choice(SYSTEMS) if random.random() < 0.2 else None)


def some_problem(random: Random) -> Problem:
    """A problem of any skill."""
    generators, weights = zip(*SKILLS.values(), strict=True)
    return draw(random.choices(generators, weights)[0], random, held_out=False)


def plain(problem: Problem) -> Document:
    """The problem as a text that goes on."""
    assert problem.plain is not None
    asked, answer = problem.plain
    return [(asked, False), (answer + END, True)]


def chat(problem: Problem, system: str | None = None) -> Document:
    """The problem as a user's turn and the assistant's; system: a message to begin with, if it has none of its own."""
    return [(prompt(problem.question, problem.system or system), False), (problem.answer + STOP, True)]
