"""Exact match without generating: an answer is what greedy search writes if and only if each of its tokens is the most
likely after the right ones before it.
"""

import torch
from torch import Tensor

from presets.packing import IGNORED


def right_rows(logits: Tensor, targets: Tensor) -> list[bool]:
    """Whether all tokens of a row are right: targets int64 [B, S], logits [N, V] of those that are not IGNORED."""
    learned = targets != IGNORED
    right = torch.ones_like(targets, dtype=torch.bool)
    right[learned] = logits.argmax(-1) == targets[learned]
    return right.all(-1).tolist()
