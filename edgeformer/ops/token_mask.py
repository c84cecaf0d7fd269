"""The mask of the new tokens of each row: tokens, and not padding."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::token_mask", mutates_args=())
def token_mask(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    """Return which new tokens are tokens, bool [B, S]: token s of row b is one where s < length(b).

    attention_mask  int64 [B, T]: each row is ones, then zeros (padding is on the right). Its sum is length(b), the
                    number of tokens of the row, new ones included.
    input_ids       int64 [B, S], or embeddings [B, S, …]; only B and S are read

    Only a first prompt has padding, behind its tokens; behind a past, S new tokens make a length of at least S. This is
    an op because graphs with a dynamic cache have their padding elsewhere (`export/graph/cache_forms.py`).
    """
    columns = torch.arange(input_ids.shape[1], device=attention_mask.device)
    return columns < attention_mask.sum(1, keepdim=True)


@token_mask.register_fake
def _(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    return attention_mask.new_empty(input_ids.shape[:2], dtype=torch.bool)
