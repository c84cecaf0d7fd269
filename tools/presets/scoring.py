"""Measure exact match without generating.

Greedy search generates an answer if and only if each of its tokens is the top-1 token after the correct ones before it.
"""

import torch
from torch import Tensor

from presets.packing import IGNORED


def right_rows(logits: Tensor, targets: Tensor) -> list[bool]:
    """Return whether all tokens of a row are correct: targets int64 [B, S], logits [N, V] of those not IGNORED."""
    learned = targets != IGNORED
    right = torch.ones_like(targets, dtype=torch.bool)
    right[learned] = logits.argmax(-1) == targets[learned]
    return right.all(-1).tolist()
