"""Problems with one right answer, and the rule that keeps some of them out of all training data."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

HELD_OUT = 20
"""One problem in HELD_OUT is held out."""


@dataclass(frozen=True)
class Problem:
    """One question to a model and its right answer.

    key: identifies what is asked, in whichever words; it alone decides whether the problem is held out. question and
    answer: as turns of a chat. plain: the same as a text to continue and its continuation, where that makes sense.
    system: the first message of the chat, where the answer depends on it.
    """

    skill: str
    key: str
    question: str
    answer: str
    plain: tuple[str, str] | None = None
    system: str | None = None

    @property
    def held_out(self) -> bool:
        """Return whether the problem is never trained on."""
        return is_held_out(f"{self.skill}: {self.key}")


Generator = Callable[[Random], Problem]


def is_held_out(key: str) -> bool:
    """Return whether a key is held out: the same on every machine and in every version of Python, unlike its hash()."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


def draw(generator: Generator, random: Random, *, held_out: bool) -> Problem:
    """Draw problems until one is on the requested side of the split."""
    while True:
        problem = generator(random)
        if problem.held_out == held_out:
            return problem


def draw_held_out(generator: Generator, random: Random, count: int) -> list[Problem]:
    """Return different held-out problems; fewer than `count` if as many draws do not find more."""
    found: dict[str, Problem] = {}
    for _ in range(50 * HELD_OUT * count):
        problem = generator(random)
        if problem.held_out:
            found.setdefault(problem.key, problem)
            if len(found) == count:
                break
    return list(found.values())
