"""A decoder over the static cache, whose buffers are bound once; a token is in the slot of its position."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.buffer import Rows
from edgeformer.runtime.sessions.session import cache_dtype
from edgeformer.runtime.steps.decoder import Decoder, Logits, Mask, Tokens, bind_input


class StaticDecoder(Decoder):
    """A decoder over buffers that are allocated and bound once; a token is in the slot of its position."""

    cache: StaticCache

    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Run a step over a mask of the whole capacity [B, C], so that no shape changes from step to step.

        The weights of a step evict this code from the processor's caches, so every Python call here is a slow one.
        """
        lengths = self.lengths + (1 if active is None else active)
        self._check_room(int(lengths.max()))
        self.lengths[:] = lengths
        np.less(self._slots, lengths[:, None], out=self._step_mask, casting="unsafe")
        self._tokens[:, 0] = tokens
        self._step_session.run_with_iobinding(self._step)
        return self._logits[:, 0]

    def decode_tokens(self, row: int, tokens: Tokens) -> Logits:
        """Run several tokens over a binding that is made once for each number of them, and kept.

        The mask is that of the whole capacity, as in a step: no shape changes from run to run of as many tokens.
        """
        key = row, len(tokens)
        mask = self._step_mask[row : row + 1]
        if key not in self._chunks:
            ids = np.empty((1, len(tokens)), np.int64)
            logits = np.empty((*ids.shape, self._vocab_size), self._logits_dtype)
            binding = self._new_binding(self._session, ids, logits, row)
            bind_input(binding, self._mask_name, mask)
            self._chunks[key] = ids, logits, binding
        ids, logits, binding = self._chunks[key]
        length = int(self.lengths[row]) + len(tokens)
        self._check_room(length)
        self.lengths[row] = length
        np.less(self._slots, length, out=mask[0], casting="unsafe")
        ids[0] = tokens
        self._session.run_with_iobinding(binding)
        return logits[0]

    def keep_rows(self, rows: Sequence[int]) -> list[int] | None:
        """Bind the next step to the front of the buffers, where the rows are then."""
        count = len(rows)
        order = np.arange(count)
        gaps = sorted(set(range(count)).difference(rows))
        order[gaps] = rows[count - len(gaps) :]
        self.reorder(order)
        if self._encoder_outputs is not None:
            assert isinstance(self._encoder_outputs, EncoderOutputs)
            self._encoder_outputs.reorder(order)
        self._tokens, self._logits = self._tokens[:count], self._logits[:count]
        self._step_mask = np.empty((count, self.cache.capacity), np.int64)
        self._chunks.clear()
        self._step = self._new_binding(self._step_session, self._tokens, self._logits, range(count))
        self._bind_step()
        return order.tolist()

    def can_cut(self, length: int) -> bool:
        """Return whether no state and no window has lost what a shorter row needs."""
        return length <= self.cache.reversible_length

    def _bind_step(self) -> None:
        bind_input(self._step, "input_ids", self._tokens)
        bind_input(self._step, self._mask_name, self._step_mask)

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> StaticCache:
        self._slots = np.arange(capacity)
        self._mask = np.empty(batch_size * capacity, np.int64)
        self._step_mask = np.empty((batch_size, capacity), np.int64)
        self._chunks: dict[tuple[int, int], tuple[NDArray[np.int64], Logits, Any]] = {}
        return new_static_cache(self._session, manifest, batch_size, capacity, provider, prefix)

    def _new_binding(self, session: Any, tokens: NDArray[np.int64], logits: Logits | None, rows: Rows = None) -> Any:
        binding = super()._new_binding(session, tokens, logits, rows)
        self.cache.bind(binding, rows)
        return binding

    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        """Yield a mask [R, T] of the first `lengths` slots of each row; later tokens overwrite the padding behind."""
        lengths = self.lengths if row is None else self.lengths[row : row + 1]
        total = max(int(lengths.max()), new.shape[1])
        mask = self._mask[: len(lengths) * total].reshape(-1, total)
        np.less(self._slots[:total], lengths[:, None], out=mask, casting="unsafe")
        return nullcontext(mask)


def new_static_cache(
    session: Any, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
) -> StaticCache:
    """Return an empty static cache for the decode graph of a session."""
    windows = layer_windows(session, manifest.cache, prefix)
    cache = StaticCache(manifest.cache, cache_dtype(manifest), batch_size, capacity, provider, windows, prefix)
    if needs_numbers(manifest):
        cache.fill(0)
    return cache


def layer_windows(session: Any, geometry: CacheGeometry, prefix: str) -> list[int | None]:
    """Return the cache length of each layer where the graph fixes it to a window, else None."""
    dims = {value.name: value.shape for value in session.get_inputs()}
    windows: list[int | None] = [None] * geometry.num_layers
    for tensor in geometry.tensors(prefix):
        if tensor.per_token and isinstance(dims[tensor.past][2], int):
            windows[tensor.layer] = dims[tensor.past][2]
    return windows


def needs_numbers(manifest: Manifest) -> bool:
    """Return whether unused slots of a static cache must be finite: ONNX's Attention multiplies them with zero."""
    return manifest.plan.ops == "standard" and manifest.plan.cache_form == "static"
