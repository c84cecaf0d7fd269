"""Feed a decoder graph over a static cache: `prefill` one row, `decode_one_token` for all rows.

Everything that a step needs is allocated and bound once; a step writes the new tokens, rebinds the mask (whose shape
grows) and runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names
from edgeformer.manifest import Manifest, Provider
from edgeformer.runtime.kv_cache import KVCache
from edgeformer.runtime.session import CACHE_DTYPES
from edgeformer.runtime.sources import Sources

PREFILL_CHUNK = 256
"""Tokens of a prompt fed at once. Attention kernels compute the masked half of one long prompt, but not of a chunk's
past."""


Tokens = Sequence[int] | NDArray[np.int64]
Logits = NDArray[Any]
"""float32 from our graphs; those of others may give the precision that they compute in."""


class StaticDecoder:
    """One request: a cache for its rows, their lengths, and the bindings of its decode steps."""

    def __init__(
        self,
        session: Any,
        manifest: Manifest,
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        sources: Sources | None = None,
    ):
        self._session = session
        self._sources = sources
        self._mask_name = "attention_mask" if sources is None else "decoder_attention_mask"
        part = "" if sources is None else "decoder."
        self._vocab_size = manifest.vocab_size
        logits = next(output for output in session.get_outputs() if output.name == "logits")
        self._logits_dtype = np.float16 if logits.type == "tensor(float16)" else np.float32
        dtype = CACHE_DTYPES[manifest.precision]
        windows = _windows(session, manifest.cache, part)
        self.cache = KVCache(manifest.cache, dtype, batch_size, capacity, provider, windows, part)
        self.lengths = np.zeros(batch_size, np.int64)
        # Decode steps: one binding, filled in place.
        self._tokens = np.zeros((batch_size, 1), np.int64)
        self._logits = np.empty((batch_size, 1, self._vocab_size), self._logits_dtype)
        self._mask = np.ones(batch_size * capacity, np.int64)
        self._step = self._new_binding()
        _bind_input(self._step, "input_ids", self._tokens)
        _bind_output(self._step, "logits", self._logits)

    def prefill(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """Append a prompt to one row, `chunk` tokens at a time. Returns the logits of its last token [V]."""
        buffer = np.empty((min(chunk, len(tokens)), self._vocab_size), self._logits_dtype)
        last = buffer
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            last = buffer[: len(piece)]
            self._run_row(row, piece, last)
        return last[-1]

    def prefill_all(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """As `prefill`, but returns the logits of every token [S, V]."""
        logits = np.empty((len(tokens), self._vocab_size), self._logits_dtype)
        for start in range(0, len(tokens), chunk):
            self._run_row(row, tokens[start : start + chunk], logits[start : start + chunk])
        return logits

    def _run_row(self, row: int, tokens: Tokens, logits: Logits) -> None:
        """One row by itself: its result is the same whatever stands in the other rows."""
        self._check_room(self.lengths[row] + len(tokens))
        self.lengths[row] += len(tokens)
        ids = np.asarray(tokens, np.int64)[None]
        mask = np.ones((1, self.lengths[row]), np.int64)
        binding = self._new_binding(row)
        _bind_input(binding, "input_ids", ids)
        _bind_input(binding, self._mask_name, mask)
        _bind_output(binding, "logits", logits[None])
        self._session.run_with_iobinding(binding)

    def prefill_batch(self, tokens: NDArray[np.int64], lengths: Tokens) -> Logits:
        """Feed right-padded prompts [B, S] to empty rows in one run, as simple clients do. Returns logits [B, S, V]."""
        assert not self.lengths.any(), "only empty rows take a padded batch"
        self._check_room(tokens.shape[1])
        self.lengths[:] = lengths
        logits = np.empty((*tokens.shape, self._vocab_size), self._logits_dtype)
        mask = (np.arange(tokens.shape[1]) < self.lengths[:, None]).astype(np.int64)
        binding = self._new_binding()
        tokens = np.ascontiguousarray(tokens)
        _bind_input(binding, "input_ids", tokens)
        _bind_input(binding, self._mask_name, mask)
        _bind_output(binding, "logits", logits)
        self._session.run_with_iobinding(binding)
        return logits

    def decode_one_token(self, tokens: Tokens, active: NDArray[np.bool_] | None = None) -> Logits:
        """Append one token to every active row (all, by default). Returns logits [B, V], overwritten by the next step.

        A row that is not active is finished: it no longer grows, and what is computed in its last slot is never read.
        """
        self.lengths += 1 if active is None else active
        total = int(self.lengths.max())
        self._check_room(total)
        self._tokens[:, 0] = tokens
        batch = self.cache.batch_size
        mask = self._mask[: batch * total].reshape(batch, total)
        if batch > 1:  # a single row's mask is all ones, whatever its length
            np.less(np.arange(total), self.lengths[:, None], out=mask, casting="unsafe")
        _bind_input(self._step, self._mask_name, mask)
        self._session.run_with_iobinding(self._step)
        return self._logits[:, 0]

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Let every row r continue from what row parents[r] was; the rows must read the same source.

        Returns how many bytes were copied.
        """
        copied = self.cache.reorder(parents, int(self.lengths.max()))
        self.lengths = self.lengths[parents]
        return copied

    def _new_binding(self, row: int | None = None) -> Any:
        """A binding of the cache and of what the decoder reads of its source, for all rows or one."""
        binding = self._session.io_binding()
        self.cache.bind(binding, row)
        if self._sources is not None:
            self._sources.bind(binding, row)
        return binding

    def _check_room(self, length: int) -> None:
        if length > self.cache.capacity:
            raise ValueError(f"{length} tokens do not fit a cache of {self.cache.capacity}")


def _windows(session: Any, geometry: CacheGeometry, part: str) -> list[int | None]:
    """The window of each layer that keeps no more: a number where the graph declares the length of its past."""
    lengths = {value.name: value.shape[2] for value in session.get_inputs() if value.name.endswith(".key")}
    return [length if isinstance(length := lengths.get(key), int) else None for key in past_names(geometry, part)[::2]]


def _bind_input(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
