"""The inputs of a graph of pictures, made of what the processor makes of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.config import PictureTower
from edgeformer.contract.tensors import PATCH_MASK, SHAPES


def tower_inputs(tower: PictureTower, values: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a batch of pictures, by name.

    values: of each picture, [3, height, width] of a tower of one size, and [rows, columns, numbers] of one of any size,
    which are padded with zeros to the most patches of a picture of the batch.
    """
    if tower.kind == "vision":
        return {"pixel_values": np.stack(values)}
    shapes = np.array([each.shape[:2] for each in values], np.int64)
    counts = shapes.prod(1)
    padded = np.zeros((len(values), counts.max(), values[0].shape[-1]), np.float32)
    for row, each in zip(padded, values, strict=True):
        row[: each.shape[0] * each.shape[1]] = each.reshape(-1, each.shape[-1])
    mask = (np.arange(counts.max()) < counts[:, None]).astype(np.int64)
    return {"pixel_values": padded, PATCH_MASK: mask, SHAPES: shapes}
