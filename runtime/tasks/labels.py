"""Labels of texts and tokens, and tokens for masks, with probabilities as transformers' pipelines compute them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeformer.config.heads import ProblemType


@dataclass(frozen=True, kw_only=True)
class Class:
    """A label and its probability.

    The probabilities of all labels sum to 1. Where labels apply or not by themselves (`problem_type` is
    `multi_label_classification`), and of a model with a single label, each is the probability that the label applies.
    For a `regression`, it is the number that the model computes, which is not a probability.
    """

    label: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A token for a mask: its id, its text, its probability, and the whole text with it in the mask's place."""

    token_id: int
    token: str
    probability: float
    text: str


def label_probabilities(
    labels: Sequence[str], logits: NDArray[np.float32], problem_type: ProblemType | None = None
) -> list[Class]:
    """Return all labels by falling logit, as transformers' pipelines compute their probabilities."""
    if problem_type == "regression":
        probabilities = logits.astype(np.float64)
    elif problem_type == "multi_label_classification" or len(labels) == 1:
        probabilities = sigmoid(logits)
    else:
        probabilities = softmax(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return [Class(label=labels[index], probability=float(probabilities[index])) for index in order]


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sigmoid, in float64, in a form that cannot overflow."""
    probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
    return probabilities


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the softmax over the last axis, in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(-1, keepdims=True)
    return probabilities
