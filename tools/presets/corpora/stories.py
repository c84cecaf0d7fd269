"""Short stories: a hero, a friend, a plot, an end."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

import tomllib
from dataclasses import dataclass
from pathlib import Path
from random import Random

from presets.corpora.characters import Character, cast, with_article
from presets.corpora.problem import Problem


@dataclass(frozen=True)
class Plot:
    """topic: the name of the story in a request. slots: values to choose from. steps: their wordings."""

    topic: str
    slots: dict[str, list[str]]
    steps: list[list[str]]


PLOTS = [Plot(**plot) for plot in tomllib.loads(Path(__file__).with_name("plots.toml").read_text("utf-8"))["plots"]]

WEATHER = ["The sun was shining", "A soft wind was blowing", "It was a cold and clear day", "The sky was grey"]

TRAITS = "little brave curious kind clever shy cheerful quiet lively young friendly patient".split()
HOMES = ["in a small village", "by the sea", "near a big forest", "in a house with a red door", "on a farm", "in town"]
DENS = ["in the forest", "by the river", "under an old oak tree", "on a farm", "near a quiet lake", "behind a hill"]

OPENINGS = [
    "Once upon a time, there was {trait_a} {kind} named {hero} who lived {home}.",
    "Once upon a time, {trait_a} {kind} lived {home}. {His} name was {hero}.",
    "{hero} was {trait_a} {kind} who lived {home}.",
    "There once was {trait_a} {kind} named {hero}. {He} lived {home}.",
    "Long ago, {trait_a} {kind} named {hero} lived {home}.",
]
ASIDES = [
    "{weather}.",
    "{hero} had a good friend named {friend}.",
    "{His} best friend was {friend}, {friend_trait_a} {friend_kind}.",
    "Everybody liked {him}, because {he} was so {second_trait}.",
    "{hero} loved to play outside.",
]
ENDINGS = [
    "That night, {hero} slept very well.",
    "{hero} never forgot that day.",
    "And they lived happily ever after.",
    "It was the best day of the year.",
    "And that is why {hero} and {friend} are still the best of friends.",
    "{hero} went home with a happy heart.",
    "The end.",
]
REQUESTS = ["Tell me a story about {topic}.", "Write a short story about {topic}.", "Please tell me about {topic}."]


def story(random: Random) -> Problem:
    """Return a story and a request for it; the key is the text itself."""
    hero, friend = cast(random, 2)
    plot = random.choice(PLOTS)
    words = _words(random, hero, friend, plot)
    sentences = [random.choice(OPENINGS)]
    if random.random() < 0.7:
        sentences.append(random.choice(ASIDES))
    sentences += map(random.choice, plot.steps)
    if random.random() < 0.6:
        sentences.append(random.choice(ENDINGS))
    # A value may contain slots of its own.
    text = " ".join(sentences).format_map(words).format_map(words)
    topic = random.choice([plot.topic, with_article(hero.kind), f"{with_article(hero.kind)} named {hero.name}"])
    asked = random.choice(REQUESTS).format(topic=topic.format_map(words))
    return Problem("story", text, asked, text, ("", text))


def _words(random: Random, hero: Character, friend: Character, plot: Plot) -> dict[str, str]:
    trait, second = random.sample(TRAITS[1:], 2)
    chosen = {slot: random.choice(values) for slot, values in plot.slots.items()}
    capitals = {f"{slot}_cap": value[0].upper() + value[1:] for slot, value in chosen.items()}
    others = {
        "trait_a": with_article(random.choice([trait, TRAITS[0]])),
        "second_trait": second,
        "home": random.choice(DENS if hero.is_animal else HOMES),
        "weather": random.choice(WEATHER),
        "friend_trait_a": with_article(random.choice(TRAITS)),
    }
    return hero.words("hero") | friend.words("friend", "friend_") | chosen | capitals | others
