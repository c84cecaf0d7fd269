"""Numbers, dates and times in English, French and German.

French uses the spelling before 1990 (vingt et un, quatre-vingts, deux cents); German numbers are one word.
"""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from datetime import date, timedelta
from random import Random

from presets.corpora.dates import DAYS, MONTHS, YEARS
from presets.corpora.numbers import in_words, some_number

Meaning = dict[str, str]
"""One text in each language: en, fr, de."""

FRENCH = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit "
    "dix-neuf"
).split()
FRENCH_TENS = "zéro dix vingt trente quarante cinquante soixante".split()
FRENCH_MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()
FRENCH_DAYS = "lundi mardi mercredi jeudi vendredi samedi dimanche".split()

GERMAN = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
GERMAN_TENS = "null zehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
GERMAN_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()
GERMAN_DAYS = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split()


def in_french(number: int) -> str:
    """Return the French words of 0 … 9999: 281 → deux cent quatre-vingt-un."""
    if number < 20:
        return FRENCH[number]
    if number < 70:
        tens, ones = divmod(number, 10)
        joint = " et " if ones == 1 else "-"
        return FRENCH_TENS[tens] + (f"{joint}{FRENCH[ones]}" if ones else "")
    if number < 80:
        return f"soixante{' et ' if number == 71 else '-'}{FRENCH[number - 60]}"
    if number < 100:
        return "quatre-vingts" if number == 80 else f"quatre-vingt-{FRENCH[number - 80]}"
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        many = "cent" if hundreds == 1 else f"{FRENCH[hundreds]} cent" + ("" if rest else "s")
    else:
        thousands, rest = divmod(number, 1000)
        many = "mille" if thousands == 1 else f"{FRENCH[thousands]} mille"
    return f"{many} {in_french(rest)}" if rest else many


def in_german(number: int) -> str:
    """Return the German word of 0 … 9999: 281 → zweihunderteinundachtzig."""
    return "eins" if number == 1 else _joined(number) + ("s" if number % 100 == 1 else "")


def _joined(number: int) -> str:
    """Return the first part of a longer German word, where 1 is ein and not eins."""
    if number < 20:
        return GERMAN[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (f"{GERMAN[ones]}und" if ones else "") + GERMAN_TENS[tens]
    unit, name = (1000, "tausend") if number >= 1000 else (100, "hundert")
    many, rest = divmod(number, unit)
    return f"{_joined(many)}{name}{_joined(rest) if rest else ''}"


def number(random: Random) -> Meaning:
    """Return a number up to 9999 in words."""
    value = some_number(random, (1, 2, 3, 4, 4))
    return {"en": in_words(value), "fr": in_french(value), "de": in_german(value)}


def day(random: Random) -> Meaning:
    """Return a date of 1950 … 2049, half of the time with its day of the week."""
    found = date(YEARS[0], 1, 1) + timedelta(days=random.randrange(365 * len(YEARS)))
    month, weekday, named = found.month - 1, found.weekday(), random.random() < 0.5
    first = "1er" if found.day == 1 else str(found.day)
    return {
        "en": f"{DAYS[weekday] + ', ' if named else ''}{found.day} {MONTHS[month]} {found.year}",
        "fr": f"{FRENCH_DAYS[weekday] + ' ' if named else ''}{first} {FRENCH_MONTHS[month]} {found.year}",
        "de": f"{GERMAN_DAYS[weekday] + ', ' if named else ''}{found.day}. {GERMAN_MONTHS[month]} {found.year}",
    }


EVENTS = [
    ("It is {}.", "Il est {}.", "Es ist {}."),
    ("The train leaves at {}.", "Le train part à {}.", "Der Zug fährt um {} ab."),
    ("The bus comes at {}.", "Le bus arrive à {}.", "Der Bus kommt um {}."),
    ("The film begins at {}.", "Le film commence à {}.", "Der Film beginnt um {}."),
    ("School ends at {}.", "L'école finit à {}.", "Die Schule endet um {}."),
    ("We eat at {}.", "Nous mangeons à {}.", "Wir essen um {}."),
    ("The shop opens at {}.", "Le magasin ouvre à {}.", "Das Geschäft öffnet um {}."),
    ("I get up at {}.", "Je me lève à {}.", "Ich stehe um {} auf."),
]


def time_of_day(random: Random) -> Meaning:
    """Return a spoken time in steps of five minutes, by itself or in a sentence."""
    hour, minute = random.randint(1, 12), 5 * random.randrange(12)
    said = (english_time(hour, minute), _french_time(hour, minute), _german_time(hour, minute))
    sentences = random.choice(EVENTS)
    return {
        language: sentence.format(time)
        for language, sentence, time in zip(("en", "fr", "de"), sentences, said, strict=True)
    }


def english_time(hour: int, minute: int) -> str:
    """Return a time in words: 3, 45 → quarter to four."""
    if minute == 0:
        return f"{in_words(hour)} o'clock"
    parts = {15: "quarter", 30: "half"}
    if minute <= 30:
        return f"{parts.get(minute, in_words(minute))} past {in_words(hour)}"
    return f"{parts.get(60 - minute, in_words(60 - minute))} to {in_words(hour % 12 + 1)}"


def _french_time(hour: int, minute: int) -> str:
    late = minute > 30
    hour = hour % 12 + 1 if late else hour
    hours = "une heure" if hour == 1 else f"{in_french(hour)} heures"
    if late:
        return f"{hours} moins {'le quart' if minute == 45 else in_french(60 - minute)}"
    past = {0: "", 15: " et quart", 30: " et demie"}
    return hours + past.get(minute, f" {in_french(minute)}")


def _german_time(hour: int, minute: int) -> str:
    if minute == 0:
        return f"{GERMAN[hour]} Uhr"
    here, following = in_german(hour), in_german(hour % 12 + 1)
    said = {
        15: f"Viertel nach {here}",
        25: f"fünf vor halb {following}",
        30: f"halb {following}",
        35: f"fünf nach halb {following}",
        45: f"Viertel vor {following}",
    }
    if minute in said:
        return said[minute]
    return f"{in_german(minute)} nach {here}" if minute < 30 else f"{in_german(60 - minute)} vor {following}"
