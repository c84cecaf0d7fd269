"""Questions about a short paragraph that holds the answer."""

# ruff: noqa: SIM905 - words in a row read better than a list of quotes

from collections.abc import Callable
from random import Random

from presets.characters import ANIMALS, Character, people
from presets.dates import DAYS
from presets.numbers import in_words
from presets.problem import Problem

COLOURS = "red blue green yellow white black brown purple orange pink grey".split()
THINGS = "hat scarf ball kite bag cup bicycle boat lamp box umbrella drum coat pencil chair".split()
PLACES = "market school library park station museum harbour bakery garden theatre church lake".split()
FRUIT = "apples pears eggs books candles flowers stamps oranges potatoes buttons".split()
WHERE = ["under the table", "on the roof", "behind the stove", "in a basket", "near the door", "on the sofa"]
ROOMS = ["in the kitchen", "by the window", "in the yard", "at the bridge"]

Fact = tuple[str, list[tuple[str, str]]]
"""A sentence, and the questions that it answers with their answers."""


def _has(random: Random, who: Character) -> Fact:
    colour, thing = random.choice(COLOURS), random.choice(THINGS)
    article = "an" if colour == "orange" else "a"
    return f"{who.name} has {article} {colour} {thing}.", [
        (f"What colour is the {thing} of {who.name}?", f"It is {colour}."),
        (f"Who has {article} {colour} {thing}?", f"{who.name} has {article} {colour} {thing}."),
        (f"What does {who.name} have?", f"{who.name} has {article} {colour} {thing}."),
    ]


def _went(random: Random, who: Character) -> Fact:
    place, day = random.choice(PLACES), random.choice(DAYS)
    sentence = f"{who.name} went to the {place} on {day}."
    return sentence, [
        (f"Where did {who.name} go?", f"{who.name} went to the {place}."),
        (f"When did {who.name} go to the {place}?", f"On {day}."),
        (f"Who went to the {place} on {day}?", f"{who.name} went to the {place} on {day}."),
    ]


def _bought(random: Random, who: Character) -> Fact:
    many, fruit = in_words(random.randint(2, 20)), random.choice(FRUIT)
    return f"{who.name} bought {many} {fruit}.", [
        (f"How many {fruit} did {who.name} buy?", f"{who.name} bought {many} {fruit}."),
        (f"What did {who.name} buy?", f"{who.name} bought {many} {fruit}."),
        (f"Who bought {many} {fruit}?", f"{who.name} bought {many} {fruit}."),
    ]


def _sleeps(random: Random, who: Character) -> Fact:
    where = random.choice(WHERE)
    owned = f"the {random.choice(list(ANIMALS))} of {who.name}"
    return f"{owned[0].upper()}{owned[1:]} sleeps {where}.", [
        (f"Where does {owned} sleep?", f"It sleeps {where}."),
        (f"What does {owned} do?", f"It sleeps {where}."),
    ]


def _waits(random: Random, who: Character) -> Fact:
    room = random.choice(ROOMS)
    return f"{who.name} is waiting {room}.", [
        (f"Where is {who.name}?", f"{who.name} is waiting {room}."),
        (f"Who is waiting {room}?", f"{who.name} is waiting {room}."),
        (f"What is {who.name} doing?", f"{who.name} is waiting {room}."),
    ]


FACTS: list[Callable[[Random, Character], Fact]] = [_has, _went, _bought, _sleeps, _waits]


def question(random: Random) -> Problem:
    """Two to four facts of different kinds about different people, and a question that one of them answers."""
    count = random.randint(2, 4)
    someone = people(random, count)
    facts = [fact(random, who) for fact, who in zip(random.sample(FACTS, count), someone, strict=True)]
    text = " ".join(sentence for sentence, _ in facts)
    asked, answer = random.choice(random.choice(facts)[1])
    return Problem("questions", f"{text} {asked}", f"{text} {asked}", answer, (f"{text} {asked}", f" {answer}"))
