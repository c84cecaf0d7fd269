"""The similarity of texts and pictures by their vectors, as a dual encoder was trained to compare them."""

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.parts import Similarity

Vectors = NDArray[np.float32]


def unit(vectors: Vectors) -> Vectors:
    """Return vectors [N, D] of length one; zeros stay zeros."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    scaled: Vectors = (vectors / np.maximum(lengths, 1e-30)).astype(np.float32)
    return scaled


def similarities(pictures: Vectors, texts: Vectors, numbers: Similarity) -> Vectors:
    """Return scale · cosine + bias of vectors of any length, [P, D] and [T, D]: float32 [P, T]."""
    found: Vectors = (unit(pictures) @ unit(texts).T) * np.float32(numbers.scale) + np.float32(numbers.bias)
    return found
