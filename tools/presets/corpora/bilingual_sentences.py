"""Simple sentences in English, French and German from one grammar, each with one translation.

Nouns have genders, adjectives agree, German articles have cases and German verbs come second, French elides.
"""

from dataclasses import dataclass
from random import Random

from presets.corpora.bilingual_numbers import Meaning
from presets.corpora.characters import BOYS, GIRLS


@dataclass(frozen=True)
class Noun:
    """One noun in each language. Genders: m or f in French, m, f or n in German; object: its German accusative."""

    en: str
    fr: str
    fr_gender: str
    de: str
    de_gender: str
    object: str = ""


@dataclass(frozen=True)
class Adjective:
    """One adjective: its French masculine and feminine, whether they follow the noun, and its German stem."""

    en: str
    fr: str
    fr_feminine: str
    de: str
    behind: bool = False
    fr_vowel: str = ""


BEINGS = [
    Noun("man", "homme", "m", "Mann", "m"),
    Noun("woman", "femme", "f", "Frau", "f"),
    Noun("boy", "garçon", "m", "Junge", "m", "Jungen"),
    Noun("girl", "fille", "f", "Mädchen", "n"),
    Noun("child", "enfant", "m", "Kind", "n"),
    Noun("dog", "chien", "m", "Hund", "m"),
    Noun("cat", "chat", "m", "Katze", "f"),
    Noun("horse", "cheval", "m", "Pferd", "n"),
    Noun("bird", "oiseau", "m", "Vogel", "m"),
    Noun("teacher", "professeur", "m", "Lehrer", "m"),
    Noun("mother", "mère", "f", "Mutter", "f"),
    Noun("brother", "frère", "m", "Bruder", "m"),
]
THINGS = [
    Noun("book", "livre", "m", "Buch", "n"),
    Noun("apple", "pomme", "f", "Apfel", "m"),
    Noun("letter", "lettre", "f", "Brief", "m"),
    Noun("car", "voiture", "f", "Auto", "n"),
    Noun("house", "maison", "f", "Haus", "n"),
    Noun("flower", "fleur", "f", "Blume", "f"),
    Noun("table", "table", "f", "Tisch", "m"),
    Noun("hat", "chapeau", "m", "Hut", "m"),
    Noun("key", "clé", "f", "Schlüssel", "m"),
    Noun("lamp", "lampe", "f", "Lampe", "f"),
    Noun("picture", "image", "f", "Bild", "n"),
    Noun("tree", "arbre", "m", "Baum", "m"),
    Noun("ball", "ballon", "m", "Ball", "m"),
    Noun("cake", "gâteau", "m", "Kuchen", "m"),
]
ADJECTIVES = [
    Adjective("small", "petit", "petite", "klein"),
    Adjective("big", "grand", "grande", "groß"),
    Adjective("old", "vieux", "vieille", "alt", fr_vowel="vieil"),
    Adjective("beautiful", "beau", "belle", "schön", fr_vowel="bel"),
]
OF_BEINGS = [*ADJECTIVES, Adjective("young", "jeune", "jeune", "jung")]
OF_THINGS = [
    *ADJECTIVES,
    Adjective("black", "noir", "noire", "schwarz", behind=True),
    Adjective("white", "blanc", "blanche", "weiß", behind=True),
    Adjective("red", "rouge", "rouge", "rot", behind=True),
    Adjective("green", "vert", "verte", "grün", behind=True),
]

VERBS = [
    ("sees", "see", "voit", "sieht"), ("finds", "find", "trouve", "findet"),
    ("draws", "draw", "dessine", "zeichnet"), ("looks for", "look for", "cherche", "sucht"),
    ("shows", "show", "montre", "zeigt"),
]  # fmt: skip
WITH_THINGS = [
    *VERBS,
    ("buys", "buy", "achète", "kauft"), ("sells", "sell", "vend", "verkauft"),
    ("carries", "carry", "porte", "trägt"), ("hides", "hide", "cache", "versteckt"),
]  # fmt: skip
PLACES = [
    ("in the garden", "dans le jardin", "im Garten"), ("in the kitchen", "dans la cuisine", "in der Küche"),
    ("in front of the school", "devant l'école", "vor der Schule"), ("on the beach", "sur la plage", "am Strand"),
    ("at the station", "à la gare", "am Bahnhof"), ("under the bridge", "sous le pont", "unter der Brücke"),
    ("behind the church", "derrière l'église", "hinter der Kirche"), ("in the forest", "dans la forêt", "im Wald"),
]  # fmt: skip
TIMES = [
    ("Today", "Aujourd'hui", "Heute"), ("In the evening", "Le soir", "Am Abend"), ("Sometimes", "Parfois", "Manchmal"),
    ("In summer", "En été", "Im Sommer"), ("On Monday", "Lundi", "Am Montag"), ("Now", "Maintenant", "Jetzt"),
]  # fmt: skip

GERMAN_ARTICLES = {
    ("the", "nominative"): {"m": "der", "f": "die", "n": "das"},
    ("the", "accusative"): {"m": "den", "f": "die", "n": "das"},
    ("a", "nominative"): {"m": "ein", "f": "eine", "n": "ein"},
    ("a", "accusative"): {"m": "einen", "f": "eine", "n": "ein"},
}
GERMAN_ENDINGS = {
    ("the", "nominative"): {"m": "e", "f": "e", "n": "e"},
    ("the", "accusative"): {"m": "en", "f": "e", "n": "e"},
    ("a", "nominative"): {"m": "er", "f": "e", "n": "es"},
    ("a", "accusative"): {"m": "en", "f": "e", "n": "es"},
}
VOWELS = "aeiouhéêâ"
"""Letters before which French elides; the only h among the words is silent."""


def noun_phrase(noun: Noun, article: str, adjective: Adjective | None, case: str) -> Meaning:
    """Return article (the or a), adjective and noun; case: nominative or accusative."""
    words = [adjective.en, noun.en] if adjective else [noun.en]
    article_en = "an" if article == "a" and words[0][0] in "aeiou" else article
    return {
        "en": " ".join([article_en, *words]),
        "fr": _french_phrase(noun, article, adjective),
        "de": _german_phrase(noun, article, adjective, case),
    }


def _french_phrase(noun: Noun, article: str, adjective: Adjective | None) -> str:
    feminine = noun.fr_gender == "f"
    words = [noun.fr]
    if adjective:
        form = adjective.fr_feminine if feminine else adjective.fr
        if not feminine and adjective.fr_vowel and noun.fr[0] in VOWELS:
            form = adjective.fr_vowel
        words.insert(1 if adjective.behind else 0, form)
    if article == "a":
        return " ".join(["une" if feminine else "un", *words])
    if words[0][0] in VOWELS:
        return "l'" + " ".join(words)
    return " ".join(["la" if feminine else "le", *words])


def _german_phrase(noun: Noun, article: str, adjective: Adjective | None, case: str) -> str:
    gender, kind = noun.de_gender, (article, case)
    described = [adjective.de + GERMAN_ENDINGS[kind][gender]] if adjective else []
    named = noun.object or noun.de if case == "accusative" else noun.de
    return " ".join([GERMAN_ARTICLES[kind][gender], *described, named])


def _some_phrase(random: Random, nouns: list[Noun], case: str, article: str | None = None) -> Meaning:
    adjectives = OF_BEINGS if nouns is BEINGS else OF_THINGS
    adjective = random.choice(adjectives) if random.random() < 0.5 else None
    return noun_phrase(random.choice(nouns), article or random.choice(["the", "a"]), adjective, case)


def _deed(random: Random, article: str | None = None) -> tuple[tuple[str, str, str, str], Meaning]:
    """Return a verb and its object."""
    nouns = random.choice([BEINGS, THINGS])
    verb = random.choice(VERBS if nouns is BEINGS else WITH_THINGS)
    return verb, _some_phrase(random, nouns, "accusative", article)


def _subject(random: Random) -> Meaning:
    if random.random() < 0.2:
        name = random.choice(GIRLS + BOYS)
        return {"en": name, "fr": name, "de": name}
    return _some_phrase(random, BEINGS, "nominative")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def statement(random: Random) -> Meaning:
    """Return a sentence in which somebody does something, sometimes with a time or a place."""
    who, ((does, _, fr, de), what) = _subject(random), _deed(random)
    where = dict.fromkeys(("en", "fr", "de"), "")
    if random.random() < 0.4:
        where = {language: f" {text}" for language, text in zip(where, random.choice(PLACES), strict=True)}
    if random.random() < 0.35:
        when = dict(zip(where, random.choice(TIMES), strict=True))
        return {
            "en": f"{when['en']}, {who['en']} {does} {what['en']}{where['en']}.",
            "fr": f"{when['fr']}, {who['fr']} {fr} {what['fr']}{where['fr']}.",
            "de": f"{when['de']} {de} {who['de']} {what['de']}{where['de']}.",
        }
    return {
        "en": _capital(f"{who['en']} {does} {what['en']}{where['en']}."),
        "fr": _capital(f"{who['fr']} {fr} {what['fr']}{where['fr']}."),
        "de": _capital(f"{who['de']} {de} {what['de']}{where['de']}."),
    }


def denial(random: Random) -> Meaning:
    """Return a sentence in which somebody does not do something."""
    who, ((_, do, fr, de), what) = _subject(random), _deed(random, "the")
    never = "n'" if fr[0] in VOWELS else "ne "
    return {
        "en": _capital(f"{who['en']} does not {do} {what['en']}."),
        "fr": _capital(f"{who['fr']} {never}{fr} pas {what['fr']}."),
        "de": _capital(f"{who['de']} {de} {what['de']} nicht."),
    }


def question(random: Random) -> Meaning:
    """Return a question: where something is, how much it costs, or whether somebody does something."""
    kind = random.random()
    if kind < 0.5:
        who, ((_, do, fr, de), what) = _subject(random), _deed(random)
        ask = "Est-ce qu'" if who["fr"][0].lower() in VOWELS else "Est-ce que "
        return {
            "en": f"Does {who['en']} {do} {what['en']}?",
            "fr": f"{ask}{who['fr']} {fr} {what['fr']} ?",
            "de": f"{_capital(de)} {who['de']} {what['de']}?",
        }
    what = _some_phrase(random, THINGS, "nominative", "the")
    if kind < 0.75:
        return {"en": f"Where is {what['en']}?", "fr": f"Où est {what['fr']} ?", "de": f"Wo ist {what['de']}?"}
    return {
        "en": f"How much does {what['en']} cost?",
        "fr": f"Combien coûte {what['fr']} ?",
        "de": f"Wie viel kostet {what['de']}?",
    }


def sentence(random: Random) -> Meaning:
    """Return a statement, a denial or a question."""
    return random.choices([statement, denial, question], [6, 2, 2])[0](random)
