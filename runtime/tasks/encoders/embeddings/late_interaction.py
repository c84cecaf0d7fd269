"""Late interaction (ColBERT, arXiv 2004.12832): how queries and documents are read, and their tokens compared."""

import numpy as np
from numpy.typing import NDArray

from edgeformer.config.heads import Reading


def as_read(ids: list[int], types: list[int], reading: Reading) -> tuple[tuple[list[int], list[int]], int]:
    """Return a text as it is read, with its prefix and the tokens behind it, and the number of tokens before those."""
    if reading.prefix is None and reading.expansion is None:
        return (ids, types), len(ids)
    if reading.prefix is not None:
        ids, types = [*ids[:1], reading.prefix, *ids[1:]], [*types[:1], 0, *types[1:]]
    more = 0 if reading.expansion is None else max(reading.expansion.length - len(ids), 0)
    token = 0 if reading.expansion is None else reading.expansion.token
    return ([*ids, *[token] * more], [*types, *[0] * more]), len(ids)


def max_sim(query: NDArray[np.float32], document: NDArray[np.float32]) -> float:
    """Return the MaxSim score of vectors [Q, D] and [N, D]: the sum of the largest product of each token of the query.

    Source: arXiv 2004.12832. 0 for a document of no tokens.
    """
    return float((query @ document.T).max(1).sum()) if len(document) else 0.0
