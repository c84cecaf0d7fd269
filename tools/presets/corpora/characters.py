"""Characters of stories and paragraphs: names, and their pronouns."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from dataclasses import dataclass
from random import Random

GIRLS = "Anna Clara Emma Grace Iris Lily Mia Nora Rosa Sophie Zoe Ella Alice Hannah Julia".split()
BOYS = "Ben David Felix Henry Jack Leo Max Noah Oscar Paul Sam Tom Adam Daniel Peter".split()

ANIMALS = {
    "fox": ("Rusty", "he"), "rabbit": ("Hazel", "she"), "bear": ("Bruno", "he"), "mouse": ("Pip", "he"),
    "cat": ("Luna", "she"), "dog": ("Buddy", "he"), "owl": ("Olive", "she"), "hedgehog": ("Spike", "he"),
    "duck": ("Daisy", "she"), "squirrel": ("Hickory", "he"), "frog": ("Fred", "he"), "horse": ("Star", "she"),
    "hen": ("Penny", "she"), "turtle": ("Toby", "he"), "deer": ("Willow", "she"), "goat": ("Greta", "she"),
}  # fmt: skip


@dataclass(frozen=True)
class Character:
    """A name, its kind (girl, boy, fox …) and its pronoun, he or she."""

    name: str
    kind: str
    pronoun: str

    @property
    def is_animal(self) -> bool:
        """Return whether the character is an animal, which lives in other places than people."""
        return self.kind in ANIMALS

    def words(self, slot: str, prefix: str = "") -> dict[str, str]:
        """Return the name as {slot} and its pronouns {he}, {He}, {him}, {his}, each after `prefix`, for a template."""
        he, him, his = ("he", "him", "his") if self.pronoun == "he" else ("she", "her", "her")
        forms = {"he": he, "He": he.title(), "him": him, "his": his, "His": his.title(), "kind": self.kind}
        return {slot: self.name} | {prefix + form: word for form, word in forms.items()}


def people(random: Random, count: int) -> list[Character]:
    """Return girls and boys with different names."""
    everyone = [Character(name, "girl", "she") for name in GIRLS] + [Character(name, "boy", "he") for name in BOYS]
    return random.sample(everyone, count)


def cast(random: Random, count: int) -> list[Character]:
    """Return the characters of a story: people, and in about one of three stories animals."""
    if random.random() > 0.35:
        return people(random, count)
    return [Character(ANIMALS[kind][0], kind, ANIMALS[kind][1]) for kind in random.sample(list(ANIMALS), count)]


def with_article(noun: str) -> str:
    """Return the noun with a or an before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
