"""The answers of a model, and their scores by skill."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from edgeformer.runtime.measure.evaluation.perplexity import perplexity
from edgeformer.runtime.measure.evaluation.questions import Question

CONFIDENCE = 0.95
"""Confidence of the intervals."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a model to a question.

    text: the generated text, or the picked one. right: whether it is the right answer. nats: the sum of −ln p over the
    `tokens` tokens of the right answer, each given the right ones before it, the end token included; None for an
    encoder.
    """

    question: Question
    text: str
    right: bool
    nats: float | None = None
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SkillScore:
    """The score of one skill: right answers out of problems; nats and tokens are sums over its `Answer`s."""

    skill: str
    right: int
    problems: int
    nats: float | None
    tokens: int

    @property
    def exact(self) -> float:
        """The fraction of right answers."""
        return self.right / self.problems

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `exact`."""
        return wilson(self.right, self.problems)

    @property
    def perplexity(self) -> float | None:
        """Perplexity per token of the right answers; None for an encoder."""
        return None if self.nats is None else perplexity(self.nats, self.tokens)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All answers of one model, in the order of the questions."""

    answers: tuple[Answer, ...]

    @property
    def skills(self) -> list[SkillScore]:
        """The scores of all skills, in the order of the questions."""
        names = dict.fromkeys(each.question.skill for each in self.answers)
        return [_count(name, [each for each in self.answers if each.question.skill == name]) for name in names]

    @property
    def total(self) -> SkillScore:
        """The score of all questions."""
        return _count("all", self.answers)

    def changes(self, other: "Evaluation") -> tuple[int, int]:
        """Return how many answers are right only here, and only in `other`, which has the same questions."""
        pairs = list(zip(self.answers, other.answers, strict=True))
        assert all(ours.question == theirs.question for ours, theirs in pairs)
        here = sum(ours.right and not theirs.right for ours, theirs in pairs)
        return here, sum(theirs.right and not ours.right for ours, theirs in pairs)


def wilson(right: int, problems: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which also holds for few problems and for 0 or 100 %.

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
