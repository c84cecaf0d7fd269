"""The static cache: one buffer for each tensor that a layer keeps, updated in place.

    key of layer i        [ row 0 | row 1 | … ]     a row: [K, C, D], of which the first `length` tokens are valid
    value of layer i      [ row 0 | row 1 | … ]
    conv of layer j       [ row 0 | row 1 | … ]     a row: [channels, width], all of it valid
    recurrent of layer j  [ row 0 | row 1 | … ]     a row: [heads, key_dim, value_dim], all of it valid

K is the number of kv heads, C the capacity, D the head dim. The graph's past and present are bound to the same buffer,
so a step writes only the new tokens, and replaces states of fixed size. A single row is bound by its address.

A layer with an attention window has a buffer of that many tokens, C = W, whatever the capacity of the others: the
attention op evicts tokens that left the window, and keeps the last min(length, W) tokens in order from slot 0.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheGeometry, StateTensor
from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.row_copies import RowCopies
from edgeformer.runtime.caches.staged_rows import StagedRows
from edgeformer.runtime.sessions.buffer import Buffer, Kind, Rows
from edgeformer.runtime.sessions.narrow_floats import numbers_of, stored
from edgeformer.runtime.sessions.providers.cpu import available_memory

Array = NDArray[Any]


LARGE = 2**25
"""Bytes of a cache from which on it is worth asking the system for pages of its own.

Smaller ones come from memory that the process has: pages that are new for each request took 0.7 ms of a first token's
11 ms (80 tokens of SmolLM2-135M's geometry, 4 MB).
"""


class StaticCache:
    """Buffers for `batch_size` rows of up to `capacity` tokens, on the CPU or a device.

    windows: of each layer, in tokens; None where it keeps all.
    prefix: the beginning of the tensors' names in a graph with several caches (`decoder.`). reserved: whether rows take
    memory only once they are written (CPU only), for a caller that sees to it that they fit. bytes: size of a full
    cache. Raises RequestError where these bytes are not free, unless they are reserved.
    """

    in_place = True

    def __init__(
        self,
        geometry: CacheGeometry,
        types: CacheTypes,
        batch_size: int,
        capacity: int,
        provider: Provider = CPU,
        windows: Sequence[int | None] = (),
        prefix: str = "",
        reserved: bool = False,
    ):
        self.batch_size = batch_size
        self.capacity = capacity
        self._geometry = geometry
        self._windows = list(windows) or [None] * geometry.num_layers
        self._tensors = geometry.tensors(prefix)
        # The buffer of a window may be longer than this request; the system only provides pages that are written.
        self.bytes = geometry.size_in_bytes(types.element_bytes, batch_size, capacity, windows)
        if not (provider.on_device or reserved):
            check_memory(self.bytes, batch_size, capacity)
        kinds = [
            (tensor.shape(batch_size, self._windows[tensor.layer] or capacity), types.of(tensor))
            for tensor in self._tensors
        ]
        self._side_by_side = self.bytes >= LARGE and not (provider.on_device or reserved)
        if self._side_by_side:
            self._buffers = self._adjacent(kinds)
        elif reserved:
            # Each is a mapping of its own, because the system may refuse one of all rows at their full length.
            self._buffers = [Buffer.reserved(*kind) for kind in kinds]
        else:
            # Slots for tokens stay uninitialised: those beyond the length of a row are masked. Some graphs multiply
            # them with zero (see `fill`).
            self._buffers = [Buffer(*kind, provider) for kind in kinds]
        copies = RowCopies if provider.addresses_rows else StagedRows
        self._copies = copies(self._buffers, [tensor.per_token for tensor in self._tensors], provider)
        self.clear_states()

    def _adjacent(self, kinds: Sequence[Kind]) -> list[Buffer]:
        """Return buffers in one memory: states of fixed size, which every step reads and writes, and then tokens."""
        order = sorted(range(len(kinds)), key=lambda place: self._tensors[place].per_token)
        made = Buffer.side_by_side([kinds[place] for place in order])
        buffers = [buffer for _, buffer in sorted(zip(order, made, strict=True), key=lambda pair: pair[0])]
        for tensor, buffer in zip(self._tensors, buffers, strict=True):
            if not tensor.per_token:
                buffer.prefer_huge_pages()
        return buffers

    @property
    def reversible_length(self) -> int:
        """Tokens up to which a row forgets its last ones by its length alone; `snapshot` says why not beyond."""
        if not all(tensor.per_token for tensor in self._tensors):
            return 0
        return min((window for window in self._windows if window is not None), default=self.capacity)

    def bind(self, binding: Any, rows: Rows = None) -> None:
        """Bind past and present of every layer to the whole cache, or to rows of it."""
        buffers, rows = self._copies.bound(rows)
        for tensor, buffer in zip(self._tensors, buffers, strict=True):
            buffer.bind_input(binding, tensor.past, rows)
            buffer.bind_output(binding, tensor.present, rows)

    @contextmanager
    def over(
        self, binding: Any, new: NDArray[np.bool_], lengths: NDArray[np.int64], row: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield a mask [R, T] of the first `lengths` slots of each row; later tokens overwrite the padding behind."""
        total = max(int(lengths.max()), new.shape[1])
        with self._copies.around(row):
            yield (np.arange(total) < lengths[:, None]).astype(np.int64)

    def expect(self, row: int, tokens: int) -> None:
        """Take account of the tokens that a row will have at least: what they fill by half is given huge pages.

        Rows that come and go keep small ones, of which each request takes as much as it was counted for.
        """
        if self._side_by_side:
            for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
                if tensor.per_token and 2 * tokens >= buffer.shape[2]:
                    buffer.prefer_huge_pages(row)

    def clear_states(self) -> None:
        """Make all states of fixed size those before the first token; slots of tokens need no clearing."""
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            if not tensor.per_token:
                buffer.put(np.zeros(buffer.shape, buffer.dtype))

    def fill(self, value: float) -> None:
        """Overwrite every slot for a token; parity checks fill with NaN to show that no unwritten slot is read."""
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            if tensor.per_token:
                number = stored(np.array(value, np.float32), buffer.dtype)
                buffer.put(np.full(buffer.shape, number, buffer.dtype))

    def read(self, length: int) -> list[tuple[Array, ...]]:
        """Return copies of what each layer keeps: the last min(length, window) tokens [B, K, …, D], or whole states."""
        return self._geometry.by_layer(
            [
                numbers_of((buffer.host()[:, :, :length] if tensor.per_token else buffer.host()).copy())
                for tensor, buffer in zip(self._tensors, self._buffers, strict=True)
            ]
        )

    def write(self, length: int, past: Callable[[int], Sequence[Array]]) -> None:
        """Replace the content by `length` tokens.

        past: layer → its tensors: keys and values [B, K, length, D], and whole states.
        """
        buffers = self._geometry.by_layer(list(zip(self._tensors, self._buffers, strict=True)))
        for layer, kept in enumerate(buffers):
            for (tensor, buffer), new in zip(kept, past(layer), strict=True):
                if not tensor.per_token:
                    buffer.put(np.ascontiguousarray(stored(new, buffer.dtype)))
                    continue
                slots = min(length, buffer.shape[2])
                content = buffer.host()
                content[:, :, :slots] = stored(new[:, :, length - slots :], buffer.dtype)
                buffer.put(content)

    @property
    def trimmable(self) -> bool:
        """Whether a row can be cut back to fewer tokens: it has no states of fixed size and no buffers of windows."""
        return all(self._is_appended(tensor) for tensor in self._tensors)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `read_tokens` returns for each token."""
        shapes = [
            (math.prod(tensor.shape(1, 1)), buffer.dtype.itemsize)
            for tensor, buffer in zip(self._tensors, self._buffers, strict=True)
            if self._is_appended(tensor)
        ]
        return sum(elements * itemsize for elements, itemsize in shapes)

    def row_layout(self, length: int) -> list[tuple[tuple[int, ...], np.dtype[Any], bool]]:
        """Return the shape and type of each tensor of a row of `length` tokens, and whether `read_tokens` has it."""
        layout = []
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            tokens = min(length, self._windows[tensor.layer] or length)
            layout.append((tensor.shape(1, tokens)[1:], buffer.dtype, self._is_appended(tensor)))
        return layout

    def read_tokens(self, row: int, start: int, stop: int) -> list[Array | None]:
        """Return copies of what tokens of a row added and no later token overwrites: [K, stop - start, D] each."""
        return [
            content[:, start:stop].copy() if self._is_appended(tensor) else None
            for tensor, content in zip(self._tensors, self._copies.read(row, stop), strict=True)
        ]

    def read_states(self, row: int, length: int) -> list[Array | None]:
        """Return copies of what later tokens of a row of `length` tokens overwrite: states, and buffers of windows."""
        if self.trimmable:
            return [None] * len(self._tensors)
        return [
            None if self._is_appended(tensor) else content.copy()
            for tensor, content in zip(self._tensors, self._copies.read(row, length), strict=True)
        ]

    def write_row(self, row: int, pieces: Sequence[Sequence[Array | None]], states: Sequence[Array | None]) -> None:
        """Replace the content of a row by what `read_tokens` returned for adjacent pieces, and `read_states` then."""
        contents = []
        for place, state in enumerate(states):
            arrays = [array for piece in pieces if (array := piece[place]) is not None]
            if state is None and arrays:
                state = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)
            contents.append(state)
        self._copies.write(row, contents)

    def _is_appended(self, tensor: StateTensor) -> bool:
        return tensor.per_token and self._windows[tensor.layer] is None

    def reorder(self, parents: NDArray[np.int64], length: int) -> int:
        """Replace every row r < len(parents) by a copy of row parents[r], in place; other rows are not touched.

        length: tokens that the rows have. Returns how many bytes were copied.
        """
        if self._copies.on_device:
            return self._copies.reorder(parents)
        return sum(
            move_rows(buffer, parents, length if tensor.per_token else None)
            for tensor, buffer in zip(self._tensors, self._buffers, strict=True)
        )

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens and the states of a row to another."""
        if self._copies.on_device:
            self._copies.move(source, target)
            return
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            content = buffer.host()
            if tensor.per_token:
                content[target, :, :length] = content[source, :, :length]
            else:
                content[target] = content[source]

    def clear_row(self, row: int) -> None:
        """Make the states of a row those before the first token; slots of tokens need no clearing."""
        zeros = [
            None if tensor.per_token else np.zeros(buffer.shape[1:], buffer.dtype)
            for tensor, buffer in zip(self._tensors, self._buffers, strict=True)
        ]
        if any(each is not None for each in zeros):
            self._copies.write(row, zeros)

    def release_row(self, row: int) -> None:
        """Give the memory for the tokens of a reserved row back."""
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            if tensor.per_token:
                buffer.release(row)

    def snapshot(self, row: int | None = None) -> list[Array | None]:
        """Return copies of what later tokens of a row overwrite, or of all: states of fixed size, buffers of windows.

        Other keys and values need no copy: a token that is taken back leaves a slot that is masked again.
        """
        if row is not None:
            return self.read_states(row, self.capacity)
        return [
            None if self._is_appended(tensor) else buffer.host().copy()
            for tensor, buffer in zip(self._tensors, self._buffers, strict=True)
        ]

    def restore(self, snapshot: Sequence[Array | None], row: int | None = None) -> None:
        """Put back what `snapshot` returned."""
        if row is not None:
            self._copies.write(row, snapshot)
            return
        for buffer, content in zip(self._buffers, snapshot, strict=True):
            if content is not None:
                buffer.put(content)


def move_rows(buffer: Buffer, parents: NDArray[np.int64], slots: int | None = None) -> int:
    """Copy row parents[r] of a buffer to every row r; return the bytes copied.

    slots: copy the first slots of rows [K, C, D]; None: copy rows as they are.
    """
    moved = np.flatnonzero(parents != np.arange(len(parents)))
    content = buffer.host()
    used = content if slots is None else content[:, :, :slots]
    # Indexing copies the rows that move, because a row may be read after it was overwritten.
    rows = used[parents[moved]]
    used[moved] = rows
    buffer.put(content)
    return rows.nbytes


def check_memory(needed: int, batch_size: int, capacity: int) -> None:
    """Raise RequestError if a cache needs more bytes than are free."""
    available = available_memory()
    if available is not None and needed > available:
        raise RequestError(
            f"the cache for {batch_size} × {capacity} tokens takes {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB of memory are free. Ask for fewer tokens (max_new_tokens) or rows."
        )
