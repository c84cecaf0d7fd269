"""The dynamic cache: every run takes a past and returns a present, which is the past of the next run.

    split    row 0 [1, K, P₀, D] · row 1 [1, K, P₁, D] · …      while rows run one by one; no padding
    joined   all rows [B, K, P, D] and a mask [B, P]            while they run together

These are keys and values; states of fixed size are joined and split as they are.
K is the number of kv heads, P the past slots, D the head dim. Rows are joined when they first run together: padded on
the right to the longest, so that later tokens come behind the padding. They are split, and lose their padding, when one
of them runs by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheGeometry, StateTensor
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.static_cache import check_memory, move_rows
from edgeformer.runtime.sessions.buffer import Buffer, Rows

Array = NDArray[Any]


@dataclass(frozen=True)
class _Block:
    """Joined rows.

    buffers: the tensors of all layers in turn, such as keys and values [R, K, P, D]. mask: int64 [R, P], 1 where a slot
    holds a token.
    """

    buffers: list[Buffer]
    mask: NDArray[np.int64]


class DynamicCache:
    """Cache of `batch_size` rows of up to `capacity` tokens, on the CPU or a device.

    prefix: the beginning of the tensors' names in a graph with several caches (`decoder.`). bytes: size of a full
    cache; a run needs twice that, for past and present.

    Raises RequestError where twice these bytes are not free.
    """

    in_place = False
    reversible_length = 0  # a past is a mask of slots, which has no end to cut: `snapshot` costs nothing here

    def __init__(
        self,
        geometry: CacheGeometry,
        types: CacheTypes,
        batch_size: int,
        capacity: int,
        provider: Provider = CPU,
        prefix: str = "",
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self.bytes = geometry.size_in_bytes(types.element_bytes, batch_size, capacity)
        if not provider.on_device:
            check_memory(2 * self.bytes, batch_size, capacity)
        self._geometry = geometry
        self._types = types
        self._provider = provider
        self._tensors = geometry.tensors(prefix)
        self._blocks = [self._block(np.ones((1, 0), np.int64)) for _ in range(batch_size)]

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind nothing: the cache changes with every run."""

    @contextmanager
    def over(
        self, binding: Any, new: NDArray[np.bool_], lengths: NDArray[np.int64], row: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Bind past and present of all rows or one; keep the present once the `with` block has run the graph.

        new: bool [R, S], which of the new slots hold tokens. Yields the mask of the present, int64 [R, P + S].
        """
        place = self._arrange(row)
        past, mask = self._blocks[place], np.concatenate([self._blocks[place].mask, new], axis=1)
        for tensor, buffer in zip(self._tensors, past.buffers, strict=True):
            buffer.bind_input(binding, tensor.past)
            # The session reuses its own memory; newly allocated memory would be mapped page by page.
            binding.bind_output(tensor.present, self._provider.name)
        yield mask
        # The presents are the last outputs; logits are bound before them.
        self._blocks[place] = self._block(mask, binding.get_outputs()[-len(past.buffers) :])

    def read(self, length: int) -> list[tuple[Array, ...]]:
        """Return what each layer keeps: the first `length` tokens of each row [B, K, length, D], or whole states.

        Padding is left out; a row with fewer tokens is filled up with zeros.
        """
        rows = self._rows()
        return self._geometry.by_layer(
            [_joined(tensor, [row[place] for row in rows], length) for place, tensor in enumerate(self._tensors)]
        )

    def write(self, length: int, past: Callable[[int], Sequence[Array]]) -> None:
        """Replace the content by `length` tokens.

        past: layer → its tensors: keys and values [B, K, length, D], and whole states.
        """
        block = self._block(np.ones((self.batch_size, length), np.int64))
        for layer, buffers in enumerate(self._geometry.by_layer(block.buffers)):
            for buffer, content in zip(buffers, past(layer), strict=True):
                buffer.put(content)
        self._blocks = [block]

    @property
    def trimmable(self) -> bool:
        """Whether a row can be cut back to fewer tokens: it has no states of fixed size."""
        return all(tensor.per_token for tensor in self._tensors)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `read_tokens` returns for each token."""
        return self._geometry.elements_per_token * self._types.element_bytes.tokens

    def row_layout(self, length: int) -> list[tuple[tuple[int, ...], np.dtype[Any], bool]]:
        """Return the shape and type of each tensor of a row of `length` tokens, and whether `read_tokens` has it."""
        return [
            (tensor.shape(1, length)[1:], np.dtype(self._types.of(tensor)), tensor.per_token)
            for tensor in self._tensors
        ]

    def read_tokens(self, row: int, start: int, stop: int) -> list[Array | None]:
        """Return copies of the keys and values of tokens of a row: [K, stop - start, D] each."""
        return [
            array[:, start:stop].copy() if tensor.per_token else None
            for tensor, array in zip(self._tensors, self._rows()[row], strict=True)
        ]

    def read_states(self, row: int, length: int) -> list[Array | None]:
        """Return copies of the states of fixed size of a row, which has `length` tokens."""
        return [
            None if tensor.per_token else array.copy()
            for tensor, array in zip(self._tensors, self._rows()[row], strict=True)
        ]

    def write_row(self, row: int, pieces: Sequence[Sequence[Array | None]], states: Sequence[Array | None]) -> None:
        """Replace the content of a row by what `read_tokens` returned for adjacent pieces, and `read_states` then."""
        content = []
        for place, state in enumerate(states):
            arrays = [array for piece in pieces if (array := piece[place]) is not None]
            content.append(np.concatenate(arrays, axis=1) if state is None else state)
        self._arrange(row)
        self._blocks[row] = self._block_of([content])

    def clear_row(self, row: int) -> None:
        """Make a row empty."""
        self._arrange(row)
        self._blocks[row] = self._block(np.ones((1, 0), np.int64))

    def move_row(self, source: int, target: int, length: int) -> None:
        """Replace a row by a copy of another one, which has this length."""
        parents = np.arange(self.batch_size)
        parents[target] = source
        self.reorder(parents, length)

    def expect(self, row: int, tokens: int) -> None:
        """Do nothing: memory is taken by each run."""

    def release_row(self, row: int) -> None:
        """Do nothing: rows that run together are one memory."""

    def snapshot(self, row: int | None = None) -> list[_Block]:
        """Return what `restore` needs to take back later tokens; it holds no copy, since no block is written again."""
        return list(self._blocks)

    def restore(self, snapshot: Sequence[_Block], row: int | None = None) -> None:
        """Put back what `snapshot` returned; for one of several rows, no other may have run since."""
        self._blocks = list(snapshot)

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Replace every row r by a copy of row parents[r]; rows that stay are not touched.

        length: tokens that the rows have. Returns how many bytes were copied: 0 while rows are split.
        """
        if len(self._blocks) == self.batch_size:
            self._blocks = [self._blocks[parent] for parent in parents]  # a past is never written to
            return 0
        block = self._blocks[0]
        copied = sum(move_rows(buffer, parents) for buffer in block.buffers)
        self._blocks = [_Block(block.buffers, block.mask[parents])]
        return copied

    def _arrange(self, row: int | None) -> int:
        """Join the rows, or split them to run one of them; return the index of its block."""
        split = len(self._blocks) == self.batch_size
        if self.batch_size > 1 and split == (row is None):
            rows = self._rows()
            self._blocks = [self._block_of(rows)] if split else [self._block_of([each]) for each in rows]
        return 0 if row is None else row

    def _rows(self) -> list[list[Array]]:
        """Return each row without padding: the tensors of all layers in turn, such as keys [K, length, D]."""
        return [
            [
                array[:, mask > 0] if tensor.per_token else array
                for tensor, array in zip(self._tensors, arrays, strict=True)
            ]
            for block in self._blocks
            for mask, *arrays in zip(block.mask, *(buffer.host() for buffer in block.buffers), strict=True)
        ]

    def _block_of(self, rows: list[list[Array]]) -> _Block:
        """Join rows, padded to the longest."""
        slots = [place for place, tensor in enumerate(self._tensors) if tensor.per_token]
        lengths = np.array([row[slots[0]].shape[1] if slots else 0 for row in rows])
        longest = int(lengths.max())
        block = self._block((np.arange(longest) < lengths[:, None]).astype(np.int64))
        for place, buffer in enumerate(block.buffers):
            buffer.put(_joined(self._tensors[place], [row[place] for row in rows], longest))
        return block

    def _block(self, mask: NDArray[np.int64], values: Sequence[Any] = ()) -> _Block:
        """Return a block with a mask [R, P]; values: the presents of a graph, or none to allocate room for them.

        States of fixed size are zero in a new block.
        """
        buffers = []
        for tensor, value in zip(self._tensors, values or [None] * len(self._tensors), strict=True):
            buffer = Buffer(tensor.shape(*mask.shape), self._types.of(tensor), self._provider, value)
            if value is None and not tensor.per_token:
                buffer.put(np.zeros(buffer.shape, buffer.dtype))
            buffers.append(buffer)
        return _Block(buffers, mask)


def _joined(tensor: StateTensor, rows: list[Array], length: int) -> Array:
    """Join rows [K, n, D] to one array [B, K, length, D], filled up with zeros, because padding must be finite.

    Rows of a state of fixed size are joined as they are.
    """
    if not tensor.per_token:
        return np.stack(rows)
    heads, _, width = rows[0].shape
    joined = np.zeros((len(rows), heads, length, width), rows[0].dtype)
    for row, tokens in zip(joined, rows, strict=True):
        row[:, : tokens.shape[1]] = tokens[:, :length]
    return joined
