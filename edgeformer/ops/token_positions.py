"""Positions of the new tokens of each row."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::token_positions", mutates_args=())
def token_positions(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    """Return the positions of the new tokens, int64 [B, S]: row b counts up from max(length(b) − S, 0).

    attention_mask  int64 [B, T]: each row is ones, then zeros (padding is on the right). Its sum is length(b), the
                    number of tokens of the row, new ones included.
    input_ids       int64 [B, S], or embeddings [B, S, …]; only B and S are read

    So S tokens after a past of P have the positions P … P + S − 1. In a right-padded first prompt (length ≤ S) every
    row starts at 0; the results of its padding are never read.
    """
    return new_positions(attention_mask, input_ids.shape[1])


@token_positions.register_fake
def _(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    return attention_mask.new_empty(input_ids.shape[:2])


def new_positions(attention_mask: Tensor, sequence_length: int) -> Tensor:
    """Return what `token_positions` returns for S = sequence_length; other ops call this."""
    start = (attention_mask.sum(1, keepdim=True) - sequence_length).clamp(min=0)
    return start + torch.arange(sequence_length, device=attention_mask.device)
