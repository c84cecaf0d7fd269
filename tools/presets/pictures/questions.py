"""Questions about pictures of shapes and digits, each with its one right answer."""

from collections.abc import Callable
from random import Random

from presets.corpora.problem import Problem
from presets.pictures.scenes import COLOURS, DIGITS, GRID, KINDS, SHAPES, Scene, Thing

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
QUARTERS = ["top left", "top right", "bottom left", "bottom right"]
"""Names of the quarters of a picture, row by row."""

LISTED = 2
"""Things of a quarter that a question asks for, at most."""

DIRECTIONS = {
    "left of": ["left of", "to the left of"],
    "right of": ["right of", "to the right of"],
    "above": ["above", "over"],
    "below": ["below", "under"],
}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

NOTHING = "nothing"

Asked = tuple[str, str] | None
"""A question and its answer; None where a scene has none of this kind."""


def indefinite(thing: Thing | None) -> str:
    """Return "a red circle", or the word for nothing."""
    return NOTHING if thing is None else f"a {thing.name}"


def reference(random: Random, shown: Scene, *, coloured: bool = True) -> tuple[str, Thing] | None:
    """Return words that mean one thing of a scene alone, and the thing; coloured: they may say the colour."""
    found = []
    for thing in shown.things:
        if sum(other.kind == thing.kind for other in shown.things) == 1:
            found.append((f"the {thing.kind}", thing))
        if coloured and sum(other.name == thing.name for other in shown.things) == 1:
            found.append((f"the {thing.name}", thing))
    return random.choice(found) if found else None


def describe(random: Random, shown: Scene) -> Asked:
    """Ask for everything, in the order of reading."""
    asked = random.choice(["Describe the picture.", "What is in the picture?", "What do you see?"])
    return asked, ", ".join(map(indefinite, shown.things))


def colour(random: Random, shown: Scene) -> Asked:
    """Ask for the colour of a thing."""
    found = reference(random, shown, coloured=False)
    if found is None:
        return None
    words, thing = found
    return f"What {random.choice(['colour', 'color'])} is {words}?", thing.colour


def kind(random: Random, shown: Scene) -> Asked:
    """Ask what the thing of a colour is."""
    alone = [one for one in shown.things if sum(other.colour == one.colour for other in shown.things) == 1]
    if not alone:
        return None
    thing = random.choice(alone)
    return random.choice([f"What is {thing.colour}?", f"Which thing is {thing.colour}?"]), f"a {thing.kind}"


def place(random: Random, shown: Scene) -> Asked:
    """Ask in which quarter a thing is, or what is in a quarter."""
    if random.random() < 0.5:
        found = reference(random, shown)
        return found and (f"Where is {found[0]}?", QUARTERS[quarter(found[1])])
    asked = quarter(random.choice(shown.things)) if random.random() < 0.7 else random.randrange(len(QUARTERS))
    there = [thing for thing in shown.things if quarter(thing) == asked]
    if len(there) > LISTED:
        return None
    return f"What is at the {QUARTERS[asked]}?", ", ".join(map(indefinite, there)) or NOTHING


def quarter(thing: Thing) -> int:
    """Return in which of the quarters a thing is."""
    return 2 * (2 * thing.row // GRID) + 2 * thing.column // GRID


def relation(random: Random, shown: Scene) -> Asked:
    """Ask what is beside a thing; the answer is rarely that there is nothing."""
    for _ in range(4):
        found = reference(random, shown)
        if found is None:
            return None
        words, thing = found
        direction = random.choice(list(DIRECTIONS))
        other = shown.beside(thing, direction)
        if other is not None or random.random() < 0.15:
            return f"What is {random.choice(DIRECTIONS[direction])} {words}?", indefinite(other)
    return None


def yes_or_no(random: Random, shown: Scene) -> Asked:
    """Ask whether there is a thing, or whether one is beside another."""
    if random.random() < 0.5:
        return _is_there(random, shown)
    found = reference(random, shown)
    if found is None:
        return None
    words, thing = found
    beside = {direction: other for direction in DIRECTIONS if (other := shown.beside(thing, direction)) is not None}
    unique = {
        direction: other
        for direction, other in beside.items()
        if sum(each.name == other.name for each in shown.things) == 1
    }
    if not unique:
        return None
    direction, other = random.choice(list(unique.items()))
    right = random.random() < 0.5
    said = OPPOSITE[direction] if right else direction
    # The other thing is in `direction` of the first, which is in the opposite one of the other.
    return f"Is {words} {random.choice(DIRECTIONS[said])} the {other.name}?", "yes" if right else "no"


def _is_there(random: Random, shown: Scene) -> Asked:
    names = {thing.name for thing in shown.things}
    if random.random() < 0.5:
        return f"Is there a {random.choice(sorted(names))}?", "yes"
    colours, kinds = ([thing.colour for thing in shown.things], [thing.kind for thing in shown.things])
    for _ in range(8):
        name = f"{random.choice(colours)} {random.choice(kinds)}"
        if name not in names and random.random() < 0.7:
            return f"Is there a {name}?", "no"
        name = f"{random.choice(list(COLOURS))} {random.choice(KINDS)}"
        if name not in names and random.random() < 0.5:
            return f"Is there a {name}?", "no"
    return None


def count(random: Random, shown: Scene) -> Asked:
    """Ask how many things there are: of a kind, of a colour, or of all."""
    chosen = random.choice(shown.things)
    match random.randrange(6):
        case 0:
            many, words = len(shown.things), "things"
        case 5:
            asked = quarter(chosen) if random.random() < 0.8 else random.randrange(len(QUARTERS))
            many = sum(quarter(each) == asked for each in shown.things)
            return f"How many things are at the {QUARTERS[asked]}?", NUMBERS[many]
        case 1:
            many, words = sum(each.kind in DIGITS for each in shown.things), "digits"
        case 2 | 3 if chosen.kind in SHAPES:
            shape = chosen.kind if random.random() < 0.8 else random.choice(SHAPES)
            many = sum(each.kind == shape for each in shown.things)
            words = {"cross": "crosses"}.get(shape, f"{shape}s")
        case _:
            shade = chosen.colour if random.random() < 0.8 else random.choice(list(COLOURS))
            many, words = sum(each.colour == shade for each in shown.things), f"{shade} things"
    return f"How many {words} are there?", NUMBERS[many]


def digit(random: Random, shown: Scene) -> Asked:
    """Ask which digit is in a picture that has one."""
    found = [thing for thing in shown.things if thing.kind in DIGITS]
    if len(found) != 1:
        return None
    asked = random.choice(["Which digit is there?", "Which number do you see?", f"Which digit is {found[0].colour}?"])
    return asked, found[0].kind


SKILLS: dict[str, tuple[Callable[[Random, Scene], Asked], int]] = {
    "describe": (describe, 2),
    "colour": (colour, 4),
    "kind": (kind, 2),
    "place": (place, 4),
    "relation": (relation, 8),
    "yes or no": (yes_or_no, 4),
    "count": (count, 5),
    "digit": (digit, 1),
}
"""Kinds of questions, and the weight with which each is drawn."""


def ask(random: Random, shown: Scene, skill: str | None = None) -> Problem | None:
    """Return a question of one kind or of any; None where a scene has none."""
    weights = [weight for _, weight in SKILLS.values()]
    skill = skill or random.choices(list(SKILLS), weights)[0]
    asked = SKILLS[skill][0](random, shown)
    return asked and Problem(skill, "", *asked)
