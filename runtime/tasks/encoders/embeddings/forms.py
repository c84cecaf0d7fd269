"""The forms of embeddings: a vector, a sparse vector, and a vector for every token."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Form = Literal["dense", "sparse", "tokens"]
"""The forms by their names in `Embedding`."""

FORMS: dict[str, Form] = {
    "vector": "dense", "sparse vector": "sparse", "token weights": "sparse", "token vectors": "tokens",
}  # fmt: skip
"""The forms by what heads give."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseVector:
    """A vector with a number for every token of the vocabulary, most of which are 0.

    indices: token ids of the others, rising. values: their numbers, float32.
    """

    indices: NDArray[np.int64]
    values: NDArray[np.float32]

    def as_dict(self) -> dict[int, float]:
        """Return a dict from token ids to their numbers."""
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))

    def dot(self, other: "SparseVector") -> float:
        """Return the product with another sparse vector, which is the score of two texts."""
        _, mine, theirs = np.intersect1d(self.indices, other.indices, assume_unique=True, return_indices=True)
        return float(self.values[mine] @ other.values[theirs])


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """An embedding of a text, in each form that was asked for; None for the others.

    dense: a vector, float32 [D]. sparse: a number for some tokens of the vocabulary. tokens: a vector for every token
    that counts, float32 [N, D].
    """

    dense: NDArray[np.float32] | None = None
    sparse: SparseVector | None = None
    tokens: NDArray[np.float32] | None = None


def sparse_of_tokens(weights: NDArray[np.float32], ids: Sequence[int], skipped: Collection[int] = ()) -> SparseVector:
    """Return the sparse vector of a text's tokens: the largest weight [S] of each id, if it is positive."""
    largest: dict[int, float] = {}
    for token, weight in zip(ids, weights.tolist(), strict=True):
        if token not in skipped and weight > largest.get(token, 0.0):
            largest[token] = weight
    indices = np.array(sorted(largest), np.int64)
    return SparseVector(indices=indices, values=np.array([largest[index] for index in indices.tolist()], np.float32))


def sparse_of_vocabulary(numbers: NDArray[np.float32]) -> SparseVector:
    """Return the sparse vector of numbers [V]."""
    indices = np.flatnonzero(numbers).astype(np.int64)
    return SparseVector(indices=indices, values=numbers[indices])
