"""Where the new tokens of each row stand."""

import torch
from torch import Tensor


@torch.library.custom_op("edgeformer::token_positions", mutates_args=())
def token_positions(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    """Positions of the new tokens, from how many tokens of each row are valid.

    attention_mask int64 [B, T]: each row is ones, then zeros (padding is on the right); its sum is the row's length
    with the new tokens in it. input_ids int64 [B, S]. Returns int64 [B, S]: row b counts up from max(length(b) − S, 0).

    So S tokens after a past of P stand at P … P + S − 1, and in a right-padded first prompt (length ≤ S) every row
    starts at 0; what the padding computes there is never read.
    """
    return new_positions(attention_mask, input_ids.shape[1])


@token_positions.register_fake
def _(attention_mask: Tensor, input_ids: Tensor) -> Tensor:
    return torch.empty_like(input_ids)


def new_positions(attention_mask: Tensor, sequence_length: int) -> Tensor:
    """The rule itself, for the ops that need it: int64 [B, S]."""
    start = (attention_mask.sum(1, keepdim=True) - sequence_length).clamp(min=0)
    return start + torch.arange(sequence_length, device=attention_mask.device)
