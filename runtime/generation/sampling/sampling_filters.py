"""Filters of sampling that few models use: top-h, and cutoffs by probability (epsilon) and by entropy (eta).

Each takes scores float64 [V], the logits after temperature and earlier filters, and bans tokens by -inf in place. The
likeliest token always stays. Source: the logits processors of transformers 5.23.
"""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

TOP_H_CANDIDATES = 100
"""The likeliest tokens, of which top-h keeps some. Source: `TopHLogitsWarper`."""


def filter_top_h(scores: Scores, top_h: float) -> None:
    """Keep the likeliest tokens whose entropy together is at most top_h of that of the hundred likeliest.

    Source: arXiv 2509.02510.
    """
    order = np.argsort(-scores, kind="stable")[:TOP_H_CANDIDATES]
    entropies = _entropies(softmax(scores[order]))
    kept = np.cumsum(entropies) <= top_h * entropies.sum()
    kept[0] = True
    # A token without probability adds no entropy; it has -inf already.
    banned = np.ones(len(scores), np.bool_)
    banned[order[kept]] = False
    scores[banned] = -np.inf


def cut_epsilon(scores: Scores, epsilon: float) -> None:
    """Keep tokens of at least this probability. Source: arXiv 2210.15191."""
    _cut(scores, softmax(scores), epsilon)


def cut_eta(scores: Scores, epsilon: float) -> None:
    """Keep tokens of at least the probability min(ε, √ε · e^-H), where H is the entropy. Source: arXiv 2210.15191."""
    probabilities = softmax(scores)
    _cut(scores, probabilities, min(epsilon, epsilon**0.5 * np.exp(-_entropies(probabilities).sum())))


def _cut(scores: Scores, probabilities: Scores, least: float) -> None:
    scores[(probabilities < least) & (scores < scores.max())] = -np.inf


def _entropies(probabilities: Scores) -> Scores:
    """Return -p log p of every probability [V], 0 where it is 0."""
    with np.errstate(divide="ignore"):
        logs = np.where(probabilities > 0, np.log(probabilities), 0)
    return -probabilities * logs


def softmax(scores: Scores) -> Scores:
    """Return probabilities [V]; a score of -inf has none."""
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()
