"""The growing key/value cache: every run reads a past, and makes a present that is the past of the next run.

    apart    row 0 [1, K, P₀, D] · row 1 [1, K, P₁, D] · …      while rows are fed one by one; no padding
    joined   all rows [B, K, P, D] and a mask [B, P]            while they are fed together

Rows are joined when they are first fed together: padded on the right to the longest, so that the tokens to come stand
behind the padding. They are taken apart when one of them is fed by itself, and lose their padding then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names, present_names
from edgeformer.manifest import Provider
from edgeformer.runtime.buffer import Buffer
from edgeformer.runtime.kv_cache import check_memory, move_rows

Array = NDArray[Any]


@dataclass(frozen=True)
class _Block:
    """Rows side by side.

    buffers: keys and values of each layer in turn [R, K, P, D]; mask: int64 [R, P], which slots hold tokens.
    """

    buffers: list[Buffer]
    mask: NDArray[np.int64]


class DynamicCache:
    """Keys and values of `batch_size` rows of up to `capacity` tokens, on the CPU or a CUDA device.

    part: what its tensors are called in a graph that has several (`decoder.`). bytes: what a full cache takes, which
    while a graph runs is there twice.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        dtype: type[np.generic],
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        part: str = "",
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self.bytes = geometry.elements(batch_size, capacity) * np.dtype(dtype).itemsize
        if provider == "cpu":
            check_memory(2 * self.bytes, batch_size, capacity)
        self._geometry = geometry
        self._dtype = dtype
        self._provider: Provider = provider
        self._names = past_names(geometry, part), present_names(geometry, part)
        self._blocks = [self._block(np.ones((1, 0), np.int64)) for _ in range(batch_size)]

    @contextmanager
    def grow(self, binding: Any, new: NDArray[np.bool_], row: int | None = None) -> Iterator[NDArray[np.int64]]:
        """Bind past and present of all rows or one; the present is kept once the `with` block has run the graph.

        new: which of the new slots hold tokens [R, S]. Yields the mask of the present [R, P + S].
        """
        place = self._arrange(row)
        past, mask = self._blocks[place], np.concatenate([self._blocks[place].mask, new], axis=1)
        for name, buffer in zip(self._names[0], past.buffers, strict=True):
            buffer.bind_input(binding, name)
        for name in self._names[1]:
            # The session's own memory is taken again and again, where new memory would be mapped page by page.
            binding.bind_output(name, self._provider)
        yield mask
        # Logits are bound before.
        self._blocks[place] = self._block(mask, binding.get_outputs()[-len(past.buffers) :])

    def read(self, length: int) -> list[tuple[Array, Array]]:
        """Keys and values of each layer, of the first `length` tokens of each row: [B, K, length, D].

        Padding is left out; zeros stand behind the tokens of a row that has fewer.
        """
        rows = self._rows()
        arrays = [_padded([row[place] for row in rows], length) for place in range(len(self._names[0]))]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def write(self, length: int, past: Callable[[int], tuple[Array, Array]]) -> None:
        """Let each layer hold `length` tokens with keys and values [B, K, length, D], and nothing else."""
        block = self._block(np.ones((self.batch_size, length), np.int64))
        for place, buffer in enumerate(block.buffers):
            buffer.put(past(place // 2)[place % 2])
        self._blocks = [block]

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Let every row r hold what row parents[r] held; rows that stay are not touched.

        length: tokens that the rows have. Returns how many bytes were copied: none while rows are apart.
        """
        if len(self._blocks) == self.batch_size:
            self._blocks = [self._blocks[parent] for parent in parents]  # nobody writes to a past
            return 0
        block = self._blocks[0]
        copied = sum(move_rows(buffer, parents, buffer.shape[2]) for buffer in block.buffers)
        self._blocks = [_Block(block.buffers, block.mask[parents])]
        return copied

    def _arrange(self, row: int | None) -> int:
        """Join the rows, or take them apart to feed one of them; return its block."""
        apart = len(self._blocks) == self.batch_size
        if self.batch_size > 1 and apart == (row is None):
            rows = self._rows()
            self._blocks = [self._block_of(rows)] if apart else [self._block_of([each]) for each in rows]
        return 0 if row is None else row

    def _rows(self) -> list[list[Array]]:
        """The tokens of each row, without padding: keys and values of each layer in turn [K, length, D]."""
        return [
            [array[:, mask > 0] for array in arrays]
            for block in self._blocks
            for mask, *arrays in zip(block.mask, *(buffer.host() for buffer in block.buffers), strict=True)
        ]

    def _block_of(self, rows: list[list[Array]]) -> _Block:
        """Rows of tokens side by side, padded to the longest."""
        lengths = np.array([row[0].shape[1] for row in rows])
        longest = int(lengths.max())
        block = self._block((np.arange(longest) < lengths[:, None]).astype(np.int64))
        for place, buffer in enumerate(block.buffers):
            buffer.put(_padded([row[place] for row in rows], longest))
        return block

    def _block(self, mask: NDArray[np.int64], values: Sequence[Any] = ()) -> _Block:
        """The presents that a graph gave for a mask [R, P], or room for them."""
        rows, slots = mask.shape
        shape = rows, self._geometry.num_kv_heads, slots, self._geometry.head_dim
        kept = values or [None] * len(self._names[0])
        return _Block([Buffer(shape, self._dtype, self._provider, value) for value in kept], mask)


def _padded(rows: list[Array], length: int) -> Array:
    """[K, n, D] of several rows as one array [B, K, length, D]; zeros, for padding must be finite."""
    heads, _, width = rows[0].shape
    joined = np.zeros((len(rows), heads, length, width), rows[0].dtype)
    for row, tokens in zip(joined, rows, strict=True):
        row[:, : tokens.shape[1]] = tokens[:, :length]
    return joined
