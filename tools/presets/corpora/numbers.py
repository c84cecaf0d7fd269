"""Problems of arithmetic up to three digits, and numbers as English words."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from random import Random

from presets.corpora.problem import Problem

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()

LARGEST = 9999
"""Largest number that is written in words."""


def in_words(number: int) -> str:
    """Return the English words of 0 … 9999: 345 → three hundred forty-five."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, unit)
    return f"{in_words(many)} {name}" + (f" {in_words(rest)}" if rest else "")


def some_number(random: Random, digits: tuple[int, ...] = (1, 2, 3, 3, 3)) -> int:
    """Return a number of one of these lengths, including leading zeros, so that long ones are most frequent."""
    return random.randrange(10 ** random.choice(digits))


def near_digits(random: Random) -> tuple[int, int]:
    """Return two numbers up to 999 with more equal or neighbouring digits than by chance."""
    a, b = 0, 0
    for _ in range(3):
        digit = random.randrange(10)
        other = digit + random.randint(-1, 1) if random.random() < 0.6 else random.randrange(10)
        a, b = 10 * a + digit, 10 * b + min(max(other, 0), 9)
    return a, b


def addition(random: Random) -> Problem:
    """Ask for a + b, each of up to three digits. b + a is the same problem."""
    return _sum(random, some_number(random), some_number(random))


def carrying(random: Random) -> Problem:
    """Ask for sums whose digits often add up to 8, 9 or 10, where a carry depends on later digits."""
    a, b = near_digits(random)
    return _sum(random, a, 999 - b)


def _sum(random: Random, a: int, b: int) -> Problem:
    asked = random.choice(
        [
            f"{a} + {b}",
            f"What is {a} + {b}?",
            f"What is {a} plus {b}?",
            f"How much is {a} + {b}?",
            f"Add {a} and {b}.",
            f"Please add {a} and {b}.",
        ]
    )
    answer = f"{a} + {b} = {a + b}"
    return Problem("addition", f"{min(a, b)} {max(a, b)}", asked, answer, (f"{a} + {b} =", f" {a + b}"))


def subtraction(random: Random) -> Problem:
    """Ask for a − b, each of up to three digits, a being the larger."""
    return _difference(random, some_number(random), some_number(random))


def borrowing(random: Random) -> Problem:
    """Ask for differences of similar digits, where a borrow depends on later digits."""
    return _difference(random, *near_digits(random))


def _difference(random: Random, a: int, b: int) -> Problem:
    a, b = max(a, b), min(a, b)
    asked = random.choice(
        [
            f"{a} - {b}",
            f"What is {a} - {b}?",
            f"What is {a} minus {b}?",
            f"How much is {a} - {b}?",
            f"Subtract {b} from {a}.",
            f"Take {b} away from {a}.",
        ]
    )
    answer = f"{a} - {b} = {a - b}"
    return Problem("subtraction", f"{a} {b}", asked, answer, (f"{a} - {b} =", f" {a - b}"))


def number_to_words(random: Random) -> Problem:
    """Ask for 0 … 9999 in words."""
    number = some_number(random, (1, 2, 3, 4, 4))
    asked = random.choice(
        [
            f"Write {number} in words.",
            f"How do you say {number}?",
            f"What is {number} in words?",
            f"Spell out {number}.",
        ]
    )
    words = in_words(number)
    return Problem("number to words", str(number), asked, words, (f"{number} in words:", f" {words}"))


def words_to_number(random: Random) -> Problem:
    """Ask for the number that is given in words."""
    number = some_number(random, (1, 2, 3, 4, 4))
    words = in_words(number)
    asked = random.choice(
        [f"Write {words} in digits.", f"What number is {words}?", f"Which number is {words}?", f"{words} in digits?"]
    )
    return Problem("words to number", str(number), asked, str(number), (f"{words} in digits:", f" {number}"))
