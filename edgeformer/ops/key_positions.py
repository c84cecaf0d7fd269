"""Positions of the keys of each row."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::key_positions", mutates_args=())
def key_positions(attention_mask: Tensor) -> Tensor:
    """Return the positions of the keys that attention sees, int64 [B, T], for biases by distance.

    attention_mask int64 [B, T]: each row is ones, then zeros. The result is 0 … T − 1 in every row, because a static
    cache keeps every token at its position. This is an op because graphs with a dynamic cache need other positions:
    the padding of shorter rows stays between their tokens, and the mask says where (`export/graph/cache_forms.py`).
    """
    return torch.arange(attention_mask.shape[1], device=attention_mask.device).repeat(attention_mask.shape[0], 1)


@key_positions.register_fake
def _(attention_mask: Tensor) -> Tensor:
    return torch.empty_like(attention_mask)
