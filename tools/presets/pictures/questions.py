"""Questions about pictures of shapes and digits, each with its one right answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

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
PLURALS = {"cross": "crosses"}

Cells = frozenset[int]


@dataclass(frozen=True)
class Asked:
    """A question and its answer.

    meant: the cells of what the question's words mean. told: those of what the answer tells; of a list, of each of its
    things.
    """

    skill: str
    question: str
    answer: str
    meant: Cells
    told: tuple[Cells, ...]


Found = tuple[str, str, Cells, tuple[Cells, ...]] | None
"""The fields of `Asked` behind its skill; None where a scene has no such question."""


def cells(things: Iterable[Thing | None]) -> Cells:
    """Return the cells of things."""
    return frozenset(thing.cell for thing in things if thing is not None)


def one_by_one(things: list[Thing]) -> tuple[Cells, ...]:
    """Return the cells of each thing of a list; of none, that there is none."""
    return tuple(cells([thing]) for thing in things) or (cells([]),)


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


def describe(random: Random, shown: Scene) -> Found:
    """Ask for everything, quarter by quarter."""
    asked = random.choice(["Describe the picture.", "What is in the picture?", "What do you see?"])
    things = in_quarters(shown)
    return asked, ", ".join(map(indefinite, things)), cells(things), one_by_one(things)


def colour(random: Random, shown: Scene) -> Found:
    """Ask for the colour of a thing."""
    found = reference(random, shown, coloured=False)
    if found is None:
        return None
    words, thing = found
    there = cells([thing])
    return f"What {random.choice(['colour', 'color'])} is {words}?", thing.colour, there, (there,)


def kind(random: Random, shown: Scene) -> Found:
    """Ask what the thing of a colour is."""
    alone = [one for one in shown.things if sum(other.colour == one.colour for other in shown.things) == 1]
    if not alone:
        return None
    thing = random.choice(alone)
    there = cells([thing])
    asked = random.choice([f"What is {thing.colour}?", f"Which thing is {thing.colour}?"])
    return asked, f"a {thing.kind}", there, (there,)


def place(random: Random, shown: Scene) -> Found:
    """Ask in which quarter a thing is, or what is in a quarter."""
    if random.random() < 0.5:
        found = reference(random, shown)
        if found is None:
            return None
        words, thing = found
        return f"Where is {words}?", QUARTERS[quarter(thing)], cells([thing]), (cells([thing]),)
    asked = quarter(random.choice(shown.things)) if random.random() < 0.7 else random.randrange(len(QUARTERS))
    there = [thing for thing in shown.things if quarter(thing) == asked]
    if len(there) > LISTED:
        return None
    answer = ", ".join(map(indefinite, there)) or NOTHING
    return f"What is at the {QUARTERS[asked]}?", answer, cells(there), one_by_one(there)


def quarter(thing: Thing) -> int:
    """Return in which of the quarters a thing is."""
    return 2 * (2 * thing.row // GRID) + 2 * thing.column // GRID


def in_quarters(shown: Scene) -> list[Thing]:
    """Return the things of a scene in the order of its quarters, and in each row by row."""
    return sorted(shown.things, key=lambda thing: (quarter(thing), thing.cell))


def relation(random: Random, shown: Scene) -> Found:
    """Ask what is beside a thing; the answer is rarely that there is nothing."""
    for _ in range(4):
        found = reference(random, shown)
        if found is None:
            return None
        words, thing = found
        direction = random.choice(list(DIRECTIONS))
        other = shown.beside(thing, direction)
        if other is not None or random.random() < 0.15:
            asked = f"What is {random.choice(DIRECTIONS[direction])} {words}?"
            return asked, indefinite(other), cells([thing]), (cells([other]),)
    return None


def yes_or_no(random: Random, shown: Scene) -> Found:
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
    asked = f"Is {words} {random.choice(DIRECTIONS[said])} the {other.name}?"
    return asked, "yes" if right else "no", cells([thing]), (cells([other]),)


def _is_there(random: Random, shown: Scene) -> Found:
    names = {thing.name for thing in shown.things}
    none = cells([]), (cells([]),)
    if random.random() < 0.5:
        asked = random.choice(sorted(names))
        there = cells(thing for thing in shown.things if thing.name == asked)
        return f"Is there a {asked}?", "yes", there, (there,)
    colours, kinds = ([thing.colour for thing in shown.things], [thing.kind for thing in shown.things])
    for _ in range(8):
        name = f"{random.choice(colours)} {random.choice(kinds)}"
        if name not in names and random.random() < 0.7:
            return f"Is there a {name}?", "no", *none
        name = f"{random.choice(list(COLOURS))} {random.choice(KINDS)}"
        if name not in names and random.random() < 0.5:
            return f"Is there a {name}?", "no", *none
    return None


def count(random: Random, shown: Scene) -> Found:
    """Ask how many things there are: of a kind, of a colour, in a quarter, or of all."""
    chosen, things = random.choice(shown.things), shown.things
    match random.randrange(6):
        case 0:
            asked, many = "things are there", cells(things)
        case 5:
            where = quarter(chosen) if random.random() < 0.8 else random.randrange(len(QUARTERS))
            asked = f"things are at the {QUARTERS[where]}"
            many = cells(each for each in things if quarter(each) == where)
        case 1:
            asked, many = "digits are there", cells(each for each in things if each.kind in DIGITS)
        case 2 | 3 if chosen.kind in SHAPES:
            shape = chosen.kind if random.random() < 0.8 else random.choice(SHAPES)
            asked = f"{PLURALS.get(shape, f'{shape}s')} are there"
            many = cells(each for each in things if each.kind == shape)
        case _:
            shade = chosen.colour if random.random() < 0.8 else random.choice(list(COLOURS))
            asked, many = f"{shade} things are there", cells(each for each in things if each.colour == shade)
    return f"How many {asked}?", NUMBERS[len(many)], many, (many,)


def digit(random: Random, shown: Scene) -> Found:
    """Ask which digit is in a picture that has one."""
    found = [thing for thing in shown.things if thing.kind in DIGITS]
    if len(found) != 1:
        return None
    asked = random.choice(["Which digit is there?", "Which number do you see?", f"Which digit is {found[0].colour}?"])
    return asked, found[0].kind, cells(found), (cells(found),)


SKILLS: dict[str, tuple[Callable[[Random, Scene], Found], int]] = {
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


def ask(random: Random, shown: Scene, skill: str | None = None) -> Asked | None:
    """Return a question of one kind or of any; None where a scene has none."""
    weights = [weight for _, weight in SKILLS.values()]
    skill = skill or random.choices(list(SKILLS), weights)[0]
    found = SKILLS[skill][0](random, shown)
    return found and Asked(skill, *found)
