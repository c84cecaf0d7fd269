"""What came of asking a model questions: answers, and how many of each skill are right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from edgeformer.runtime.evaluation.perplexity import perplexity
from edgeformer.runtime.evaluation.questions import Question

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model made of a question.

    text: what it wrote, or picked. nats: the sum of −ln p over the `tokens` of the right answer, each after the right
    ones before it, the end of the text among them; None for a model that writes nothing.
    """

    question: Question
    text: str
    right: bool
    nats: float | None = None
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SkillScore:
    """Answers to the questions of one skill, counted; nats and tokens as of an `Answer`."""

    skill: str
    right: int
    problems: int
    nats: float | None
    tokens: int

    @property
    def exact(self) -> float:
        """The part that is right."""
        return self.right / self.problems

    @property
    def interval(self) -> tuple[float, float]:
        """Where `exact` would be, at 95 % confidence, with any number of such questions."""
        return wilson(self.right, self.problems)

    @property
    def perplexity(self) -> float | None:
        """Of a token of the right answers."""
        return None if self.nats is None else perplexity(self.nats, self.tokens)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All answers of one model, in the order of the questions."""

    answers: tuple[Answer, ...]

    @property
    def skills(self) -> list[SkillScore]:
        """The score of each skill."""
        names = dict.fromkeys(each.question.skill for each in self.answers)
        return [_count(name, [each for each in self.answers if each.question.skill == name]) for name in names]

    @property
    def total(self) -> SkillScore:
        """The score of all questions."""
        return _count("all", self.answers)

    def changes(self, other: "Evaluation") -> tuple[int, int]:
        """How many answers are right only here, and how many only in the other; both of the same questions."""
        pairs = list(zip(self.answers, other.answers, strict=True))
        assert all(ours.question == theirs.question for ours, theirs in pairs)
        here = sum(ours.right and not theirs.right for ours, theirs in pairs)
        return here, sum(theirs.right and not ours.right for ours, theirs in pairs)


def wilson(right: int, problems: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a proportion, which holds also for few problems, and where none or all are right.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (JASA 22, 1927).
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = right / problems, z * z / problems
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _count(skill: str, answers: Sequence[Answer]) -> SkillScore:
    nats = [each.nats for each in answers if each.nats is not None]
    return SkillScore(
        skill=skill,
        right=sum(each.right for each in answers),
        problems=len(answers),
        nats=math.fsum(nats) if nats else None,
        tokens=sum(each.tokens for each in answers),
    )
