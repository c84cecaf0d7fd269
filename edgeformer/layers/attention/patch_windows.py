"""Attention within windows of a picture, as products of small blocks.

    patches   │ window 0 ……… │ window 1 … │ window 2 ……… │     ordered by window, of `length` patches or fewer each
    blocks    │   block 0   │   block 1   │   block 2   │      `length` queries each; keys are those of three blocks

A window reaches into the blocks beside that of a query, and no further. So the number of blocks follows from that of
the patches, while the number of windows, of which those at the edges are smaller, does not. The scores of a query are
3 · `length` numbers, in the place of one for each patch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PatchBlocks:
    """The patches of each block, and the keys that a query of it sees.

    Attributes:
        queries, keys: rows of patches, int64 [N · L] and [N · 3L]; rows beyond the last patch repeat it.
        bias: added to scores, [N, 1, L, 3L]: −inf for keys of another window.
        length: L.
        patches: places of the patches among the queries, int64 [P].
    """

    queries: Tensor
    keys: Tensor
    bias: Tensor
    length: int
    patches: Tensor

    @classmethod
    def of(cls, windows: Tensor, length: int, dtype: torch.dtype) -> "PatchBlocks":
        """Return the blocks of patches that are ordered by their windows, int64 [P] of numbers from 0 on."""
        count = windows.shape[0]
        blocks = (count + length - 1) // length
        queries = torch.arange(blocks * length, device=windows.device).view(blocks, length)
        around = torch.arange(3 * length, device=windows.device) - length
        keys = torch.arange(blocks, device=windows.device).unsqueeze(1) * length + around  # [N, 3L]
        of_queries = _window(windows, queries, count)
        # A row beyond the last patch sees others of its kind, so that its softmax, which nothing reads, is of numbers.
        of_keys = torch.where((keys >= 0) & (keys < blocks * length), _window(windows, keys, count), -2)
        hidden = of_queries.unsqueeze(2) != of_keys.unsqueeze(1)  # [N, L, 3L]
        bias = torch.zeros(hidden.shape, dtype=dtype, device=windows.device).masked_fill(hidden, float("-inf"))
        return cls(
            queries=queries.clamp(max=count - 1).view(-1),
            keys=keys.clamp(min=0, max=count - 1).view(-1),
            bias=bias.unsqueeze(1),
            length=length,
            patches=torch.arange(count, device=windows.device),
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, scale: float) -> Tensor:
        """Return the attention of patches to those of their window, [1, P, H·D], of queries, keys and values of it."""
        q = self._blocks(query, self.queries, self.length, num_heads)  # [N, H, L, D]
        k, v = (self._blocks(each, self.keys, 3 * self.length, num_heads) for each in (key, value))
        scores = (q * scale) @ k.transpose(-1, -2) + self.bias
        attended = (scores.softmax(-1) @ v).transpose(1, 2)  # [N, L, H, D]
        return attended.reshape(-1, query.shape[-1]).index_select(0, self.patches).unsqueeze(0)

    def _blocks(self, x: Tensor, rows: Tensor, length: int, num_heads: int) -> Tensor:
        """Return rows of x [1, P, H·D] as blocks [N, H, length, D]."""
        found = x.squeeze(0).index_select(0, rows)
        return found.view(-1, length, num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def _window(windows: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return the windows of rows of patches, −1 for those beyond the last patch."""
    found = windows[rows.clamp(min=0, max=count - 1)]
    return torch.where(rows < count, found, -1)
