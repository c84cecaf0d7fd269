"""Where the keys of each row stand."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::key_positions", mutates_args=())
def key_positions(attention_mask: Tensor) -> Tensor:
    """Positions of the keys that attention sees, for biases by distance.

    attention_mask int64 [B, T]: each row is ones, then zeros. Returns int64 [B, T]: 0 … T − 1, since every token is
    kept at its position. It is an op of its own because a graph whose cache grows keeps tokens elsewhere: there the
    padding of shorter rows stays between them, and the mask says where (`export/cache_forms.py`).
    """
    return torch.arange(attention_mask.shape[1], device=attention_mask.device).repeat(attention_mask.shape[0], 1)


@key_positions.register_fake
def _(attention_mask: Tensor) -> Tensor:
    return torch.empty_like(attention_mask)
