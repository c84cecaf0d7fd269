"""Pairs of English texts with the same meaning in different words.

A pattern has slots and wordings; a pair takes two wordings of one pattern and fills both with the same values. A value
can have several wordings too: 345 or three hundred forty-five, small or little.
"""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

import re
from collections.abc import Callable
from random import Random

from presets.corpora.bilingual_numbers import english_time
from presets.corpora.characters import BOYS, GIRLS
from presets.corpora.dates import some_date, written
from presets.corpora.numbers import in_words
from presets.corpora.problem import Problem

Said = tuple[str, ...]
"""Wordings of one value."""


def _one_of(*values: str) -> Callable[[Random], Said]:
    """Return a generator of values; those separated by slashes are wordings of one value."""
    return lambda random: tuple(random.choice(values).split("/"))


def _number(random: Random) -> Said:
    number = random.randint(2, 999)
    return str(number), in_words(number)


def _small_number(random: Random) -> Said:
    number = random.randint(2, 12)
    return str(number), in_words(number)


def _date(random: Random) -> Said:
    found = some_date(random)
    day, month, year = written(found).split()
    return f"{day} {month} {year}", f"{month} {day}, {year}", found.isoformat()


def _time(random: Random) -> Said:
    hour, minute = random.randint(1, 12), 5 * random.randrange(12)
    return f"{hour}:{minute:02}", english_time(hour, minute)


SLOTS: dict[str, Callable[[Random], Said]] = {
    "number": _number,
    "few": _small_number,
    "date": _date,
    "time": _time,
    "name": _one_of(*GIRLS, *BOYS),
    "other": _one_of(*GIRLS, *BOYS),
    "adjective": _one_of("small/little/tiny", "big/large", "old/aged", "beautiful/pretty/lovely", "clever/smart",
                         "happy/glad/cheerful", "sad/unhappy", "quick/fast", "brave/fearless", "tired/sleepy"),
    "animal": _one_of(*"dog cat horse bird fox rabbit bear mouse duck goat".split()),
    "thing": _one_of("key", "lamp", "picture/image", "hat", "letter", "cake", "ball", "book", "flower", "stone/rock"),
    "did": _one_of("saw/noticed", "bought/purchased", "found/discovered", "drew/sketched", "carried", "hid/concealed",
                   "mended/repaired/fixed", "cleaned/washed", "lost", "sold"),
    "place": _one_of("garden", "kitchen", "forest", "street/road", "school", "market", "house/home", "harbour"),
    "room": _one_of("kitchen", "bedroom", "bathroom", "hall", "cellar", "living room", "office", "garage"),
    "device": _one_of("lamp/light", "heating/heater", "radio", "television/TV", "fan", "oven", "washing machine"),
    "town": _one_of(*"Paris Berlin London Rome Madrid Vienna Oslo Lisbon Dublin Prague Athens Warsaw".split()),
    "when": _one_of("today", "tomorrow", "tonight/this evening", "on Monday", "on Friday", "next week"),
    "dish": _one_of(*"soup bread pancakes salad rice noodles potatoes fish pizza curry".split()),
    "account": _one_of("password", "username/user name", "e-mail address/email", "phone number", "address", "PIN"),
    "music": _one_of("jazz", "rock", "piano music/music for piano", "folk songs", "an opera", "film music"),
    "goods": _one_of("shoes", "a coat/a jacket", "a bicycle/a bike", "a phone", "a table", "a tent", "a guitar"),
    "ill": _one_of("a headache", "a cold", "a fever/a temperature", "a sore throat", "a toothache", "back pain"),
}  # fmt: skip

PATTERNS: dict[str, list[list[str]]] = {
    "statements": [
        ["The {adjective} {animal} is in the {place}.", "There is a {adjective} {animal} in the {place}.",
         "In the {place} is a {adjective} {animal}."],
        ["{name} {did} the {thing} in the {place}.", "In the {place}, {name} {did} the {thing}.",
         "It was in the {place} that {name} {did} the {thing}."],
        ["{name} gave {other} a {thing}.", "{other} got a {thing} from {name}."],
        ["{name} is taller than {other}.", "{other} is shorter than {name}.", "{other} is not as tall as {name}."],
        ["{name} has a {adjective} {animal}.", "{name} owns a {adjective} {animal}.",
         "The {adjective} {animal} belongs to {name}."],
        ["{name} is the teacher of {other}.", "{other} is taught by {name}.", "{name} teaches {other}."],
    ],
    "numbers": [
        ["The ticket to {town} costs {number} euros.", "You pay {number} euros for a ticket to {town}.",
         "The price of a ticket to {town} is {number} euros."],
        ["{name} is {number} months old.", "{name} has lived for {number} months."],
        ["It is {number} kilometres to {town}.", "{town} is {number} kilometres away.",
         "The distance to {town} is {number} kilometres."],
        ["There are {number} people in the {place}.", "{number} people are in the {place}.",
         "The {place} holds {number} people."],
    ],
    "dates and times": [
        ["The meeting is on {date}.", "We meet on {date}.", "Our meeting takes place on {date}."],
        ["{name} was born on {date}.", "The birthday of {name} is {date}.", "{date} is when {name} was born."],
        ["The train to {town} leaves at {time}.", "Departure to {town} is at {time}.",
         "At {time}, the train to {town} departs."],
        ["Wake me at {time}.", "Set an alarm for {time}.", "I want to get up at {time}."],
        ["The shop closes at {time}.", "The shop is open until {time}.", "After {time}, the shop is shut."],
    ],
    "requests": [
        ["Turn on the {device} in the {room}.", "Switch the {device} in the {room} on, please.",
         "I want the {device} in the {room} to be on."],
        ["Turn off the {device} in the {room}.", "Switch the {device} in the {room} off, please.",
         "The {device} in the {room} should be off."],
        ["What will the weather be in {town} {when}?", "Tell me the forecast for {town} {when}.",
         "Will it rain in {town} {when}?"],
        ["Book a table for {few} in {town} {when}.", "I need a restaurant in {town} {when} for {few} people.",
         "Reserve seats for {few} at a restaurant in {town} {when}."],
        ["How do I cook {dish} for {few} people?", "I need a recipe for {dish} that feeds {few}.",
         "What goes into {dish} for {few}?"],
        ["How can I change my {account}?", "I want to update my {account}.", "Where do I set a new {account}?"],
        ["I forgot my {account}.", "I can not remember my {account}.", "My {account} has slipped my mind."],
        ["Play {music}.", "I would like to hear {music}.", "Put on {music}, please."],
        ["I want to buy {goods} in {town}.", "Where in {town} can I get {goods}?",
         "Which shop in {town} sells {goods}?"],
        ["I have {ill}. What helps?", "What can I do against {ill}?", "Is there a remedy for {ill}?"],
        ["Send {name} a message: I come {when}.", "Tell {name} that I come {when}.",
         "Let {name} know that I come {when}."],
    ],
}  # fmt: skip


def pair(random: Random, kind: str | None = None) -> Problem:
    """Return two wordings of one meaning, of one kind or of any, as question and answer; the key is the meaning."""
    kind = kind or random.choice(list(PATTERNS))
    wordings = random.choice(PATTERNS[kind])
    first, second = random.sample(wordings, 2)
    used = {slot: say(random) for slot, say in SLOTS.items() if f"{{{slot}}}" in wordings[0]}
    while used.get("name") is not None and used.get("name") == used.get("other"):
        used["other"] = SLOTS["other"](random)
    key = f"{wordings[0]} {sorted(said[0] for said in used.values())} {used.get('name')}"

    def filled(wording: str) -> str:
        text = wording.format_map({slot: random.choice(said) for slot, said in used.items()})
        text = re.sub(r"\ba (?=[aeiou])", "an ", text)
        return text[0].upper() + text[1:]

    return Problem(kind, key, filled(first), filled(second))
