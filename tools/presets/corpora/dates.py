"""Problems on dates: the day after, the day before, and days of the week."""

# ruff: noqa: SIM905 - split() on one string is easier to read than a list of quoted words

from calendar import monthrange
from datetime import date, timedelta
from random import Random

from presets.corpora.problem import Problem

MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
YEARS = range(1950, 2050)
FURTHEST = 40
"""Largest number of days from one day of the week to another."""


def written(day: date) -> str:
    """Return a date as 28 February 2024."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def some_date(random: Random) -> date:
    """Return a date of 1950 … 2049; ends of months, and of February, are drawn more often."""
    year, kind = random.choice(YEARS), random.random()
    month = 2 if kind < 0.1 else random.randint(1, 12)
    last = monthrange(year, month)[1]
    return date(year, month, random.randint(last - 1, last) if kind < 0.3 else random.randint(1, last))


def next_day(random: Random) -> Problem:
    """Ask for the date one day later or earlier."""
    start = some_date(random)
    side, step = random.choice([("after", 1), ("before", -1)])
    if step < 0:
        start += timedelta(days=1)  # so that first days of months are as frequent as last days
    asked = random.choice(
        [
            f"What date comes one day {side} {written(start)}?",
            f"What is the day {side} {written(start)}?",
            f"Which day comes {side} {written(start)}?",
        ]
    )
    answer = written(start + timedelta(days=step))
    return Problem(
        "dates", f"{side} {written(start)}", asked, answer, (f"The day {side} {written(start)} is", f" {answer}")
    )


def weekday(random: Random) -> Problem:
    """Ask for the day of the week a number of days from a given one."""
    start, days, later = random.randrange(7), random.randint(1, FURTHEST), random.random() < 0.5
    day, found = DAYS[start], DAYS[(start + (days if later else -days)) % 7]
    weeks, rest = divmod(days, 7)
    many = _counted(days, "day")
    asked = f"what day is it in {many}?" if later else f"what day was it {many} ago?"
    if rest:
        answer = f"{_counted(rest, 'day')} {'after' if later else 'before'} {day} {'is' if later else 'was'} {found}."
    else:
        answer = f"it {'will be' if later else 'was'} {found} too."
    if weeks:
        parts = _counted(weeks, "week") + (f" and {_counted(rest, 'day')}" if rest else "")
        answer = f"{many} are {parts}, and {answer}"
    return Problem("weekdays", f"{day} {days if later else -days}", f"If today is {day}, {asked}", answer)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
