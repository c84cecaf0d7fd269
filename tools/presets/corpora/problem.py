"""Problems with one right answer, and the rule that keeps some of them out of all training."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

HELD_OUT = 20
"""One problem in so many is held out."""


@dataclass(frozen=True)
class Problem:
    """One question to a model and the answer that is right.

    key: what is asked, however it is worded; it alone decides whether the problem is held out. question and answer: as
    turns of a chat. plain: the same as a text to be continued and how it goes on, where that makes sense. system: the
    message that the chat begins with, where the answer depends on it.
    """

    skill: str
    key: str
    question: str
    answer: str
    plain: tuple[str, str] | None = None
    system: str | None = None

    @property
    def held_out(self) -> bool:
        """Whether the problem is never trained on."""
        return is_held_out(f"{self.skill}: {self.key}")


Generator = Callable[[Random], Problem]


def is_held_out(key: str) -> bool:
    """The same answer on every machine and in every version of Python, whose own hash changes from run to run."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


def draw(generator: Generator, random: Random, *, held_out: bool) -> Problem:
    """Draw problems until one is on the wished side of the split."""
    while True:
        problem = generator(random)
        if problem.held_out == held_out:
            return problem


def draw_held_out(generator: Generator, random: Random, count: int) -> list[Problem]:
    """Different held-out problems; fewer than count where so many draws do not find more."""
    found: dict[str, Problem] = {}
    for _ in range(50 * HELD_OUT * count):
        problem = generator(random)
        if problem.held_out:
            found.setdefault(problem.key, problem)
            if len(found) == count:
                break
    return list(found.values())
