"""Questions about a short paragraph that contains the answer."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from collections.abc import Callable
from random import Random

from presets.corpora.characters import ANIMALS, Character, people
from presets.corpora.dates import DAYS
from presets.corpora.numbers import in_words
from presets.corpora.problem import Problem

COLOURS = "red blue green yellow white black brown purple orange pink grey".split()
THINGS = "hat scarf ball kite bag cup bicycle boat lamp box umbrella drum coat pencil chair".split()
PLACES = "market school library park station museum harbour bakery garden theatre church lake".split()
FRUIT = "apples pears eggs books candles flowers stamps oranges potatoes buttons".split()
WHERE = ["under the table", "on the roof", "behind the stove", "in a basket", "near the door", "on the sofa"]
ROOMS = ["in the kitchen", "by the window", "in the yard", "at the bridge"]

TURNED = 0.5
"""Fraction of the sentences that begin with a thing or a place and name the person after it."""

Fact = tuple[str, list[tuple[str, str]]]
"""A sentence, and the questions that it answers with their answers.

An answer repeats the sentence in its order: a model of this size does not learn within an hour to name the person that
comes before the words of the question.
"""


def _has(random: Random, who: Character) -> Fact:
    colour, thing = random.choice(COLOURS), random.choice(THINGS)
    of_colour = (f"What colour is the {thing} of {who.name}?", f"It is {colour}.")
    if random.random() < TURNED:
        sentence = f"The {colour} {thing} belongs to {who.name}."
        return sentence, [of_colour, (f"Whose is the {colour} {thing}?", sentence)]
    sentence = f"{who.name} has {'an' if colour == 'orange' else 'a'} {colour} {thing}."
    return sentence, [of_colour, (f"What does {who.name} have?", sentence)]


def _went(random: Random, who: Character) -> Fact:
    place, day = random.choice(PLACES), random.choice(DAYS)
    when = (f"When did {who.name} go to the {place}?", f"On {day}.")
    if random.random() < TURNED:
        visited = f"The {place} was visited by {who.name}"
        return f"{visited} on {day}.", [when, (f"Who visited the {place}?", f"{visited}.")]
    went = f"{who.name} went to the {place}"
    return f"{went} on {day}.", [when, (f"Where did {who.name} go?", f"{went}.")]


def _bought(random: Random, who: Character) -> Fact:
    many, fruit = in_words(random.randint(2, 20)), random.choice(FRUIT)
    if random.random() < TURNED:
        sentence = f"{many.capitalize()} {fruit} were bought by {who.name}."
        return sentence, [(question, sentence) for question in (f"Who bought {many} {fruit}?", f"Who bought {fruit}?")]
    sentence = f"{who.name} bought {many} {fruit}."
    asked = (f"How many {fruit} did {who.name} buy?", f"What did {who.name} buy?")
    return sentence, [(question, sentence) for question in asked]


def _sleeps(random: Random, who: Character) -> Fact:
    where, owned = random.choice(WHERE), f"the {random.choice(list(ANIMALS))} of {who.name}"
    asleep = (f"Where does {owned} sleep?", f"It sleeps {where}.")
    if random.random() < TURNED:
        sentence = _capitalized(f"{where} sleeps {owned}.")
        return sentence, [asleep, (f"Who sleeps {where}?", sentence)]
    return _capitalized(f"{owned} sleeps {where}."), [asleep, (f"What does {owned} do?", f"It sleeps {where}.")]


def _waits(random: Random, who: Character) -> Fact:
    room = random.choice(ROOMS)
    if random.random() < TURNED:
        sentence = _capitalized(f"{room} waits {who.name}.")
        return sentence, [(f"Who waits {room}?", sentence)]
    sentence = f"{who.name} is waiting {room}."
    return sentence, [(question, sentence) for question in (f"Where is {who.name}?", f"What is {who.name} doing?")]


def _capitalized(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


FACTS: list[Callable[[Random, Character], Fact]] = [_has, _went, _bought, _sleeps, _waits]


def paragraph(random: Random) -> tuple[str, list[tuple[str, str]]]:
    """Return two to four facts of different kinds about different people, and a question with its answer on each."""
    count = random.randint(2, 4)
    someone = people(random, count)
    facts = [fact(random, who) for fact, who in zip(random.sample(FACTS, count), someone, strict=True)]
    asked = [random.choice(questions) for _, questions in random.sample(facts, count)]
    return " ".join(sentence for sentence, _ in facts), asked


def about(text: str, asked: str, answer: str) -> Problem:
    """Return a question after its paragraph."""
    return Problem("questions", f"{text} {asked}", f"{text} {asked}", answer, (f"{text} {asked}", f" {answer}"))


def question(random: Random) -> Problem:
    """Return a paragraph and one question."""
    text, asked = paragraph(random)
    return about(text, *asked[0])
