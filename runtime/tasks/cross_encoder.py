"""Scores of pairs of texts, as sentence-transformers' CrossEncoder gives them.

Source: sentence_transformers/cross_encoder/model.py of sentence-transformers 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import ClassificationHead
from edgeformer.runtime.tasks.labels import sigmoid


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A document of a ranking: its place in the list that was given, its score, and its text."""

    index: int
    score: float
    text: str


def score_of(head: ClassificationHead, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scores of logits [..., labels]; one label has no axis of its own."""
    score = head.score or ("sigmoid" if len(head.labels) == 1 else "identity")
    if score == "sigmoid":
        logits = sigmoid(logits).astype(np.float32)
    return logits[..., 0] if len(head.labels) == 1 else logits


def best_documents(documents: Sequence[str], scores: NDArray[np.float32], most: int) -> list[Ranked]:
    """Return at most so many documents by falling score; of equal ones the first comes first."""
    order = np.argsort(-scores, kind="stable")[:most].tolist()
    return [Ranked(index=index, score=float(scores[index]), text=documents[index]) for index in order]
