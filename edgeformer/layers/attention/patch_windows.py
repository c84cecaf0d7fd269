"""Attention within windows of a picture, as attention within small blocks of patches.

    patches   │ window 0 ……… │ window 1 … │ window 2 ……… │     ordered by window, of `length` patches or fewer each
    blocks    │   block 0   │   block 1   │   block 2   │      of `length` patches; each attends with those beside it

A window reaches into the blocks beside that of a query, and no further. So the number of blocks follows from that of
the patches, while the number of windows, of which those at the edges are smaller, does not. A block costs nine times
the scores of a window; all scores of a picture would be as many times as it has blocks, divided by nine.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeformer import ops


@dataclass(frozen=True)
class PatchBlocks:
    """The patches of each block, between those of the blocks beside it, and the keys that each sees.

    Attributes:
        rows: of patches, int64 [N, 3L]; rows beyond the patches repeat the first or the last one.
        bias: added to scores, [N, 1, 3L, 3L]: −inf for keys of another window.
        blocks, columns: where the patches are, int64 [P]: in the middle of their blocks.
    """

    rows: Tensor
    bias: Tensor
    blocks: Tensor
    columns: Tensor

    @classmethod
    def of(cls, windows: Tensor, length: int, dtype: torch.dtype) -> "PatchBlocks":
        """Return the blocks of patches that are ordered by their windows, int64 [P] of numbers from 0 on."""
        count = windows.shape[0]
        first = torch.arange((count + length - 1) // length, device=windows.device) * length
        rows = first.unsqueeze(1) + torch.arange(-length, 2 * length, device=windows.device)  # [N, 3L]
        readable = rows.clamp(min=0, max=count - 1)
        # Rows beyond the patches see each other, so that their softmax, which nothing reads, is of numbers.
        inside = torch.where((rows >= 0) & (rows < count), windows[readable], -1)
        hidden = inside.unsqueeze(2) != inside.unsqueeze(1)  # [N, 3L, 3L]
        bias = torch.zeros(hidden.shape, dtype=dtype, device=windows.device).masked_fill(hidden, float("-inf"))
        patches = torch.arange(count, device=windows.device)
        return cls(readable, bias.unsqueeze(1), patches // length, patches % length + length)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, scale: float) -> Tensor:
        """Return the attention of patches to those of their window, [1, P, H·D], of queries, keys and values of it."""
        q, k, v = (each.squeeze(0)[self.rows] for each in (query, key, value))  # [N, 3L, H·D]
        mask = torch.ones(self.rows.shape, dtype=torch.int64, device=query.device)
        attended, _, _ = ops.group_query_attention(
            q, k, v, None, None, mask, num_heads, num_heads, scale, attention_bias=self.bias, causal=False
        )
        return attended[self.blocks, self.columns].unsqueeze(0)
