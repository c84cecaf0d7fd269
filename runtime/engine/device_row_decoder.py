"""Rows that come and go, on a device: all of their memory is taken at once, and CUDA graphs may replay their steps.

A step is captured for the first 1, 2, 4, … rows and masks of 256, 512, … tokens. Rows among them that do not run get a
token in the slot behind their last one, where a later token is written in any case.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.engine.row_decoder import MASK_STEP, RowDecoder
from edgeformer.runtime.sessions.buffer import Buffer
from edgeformer.runtime.sessions.pinned_memory import HostMemory
from edgeformer.runtime.steps.decoder import Candidates, Logits, Tokens
from edgeformer.runtime.steps.device_decoder import SHORTEST, DevicePrompts, next_power_of_two
from edgeformer.runtime.steps.static_decoder import new_static_cache


@dataclass
class _Step:
    """A step of some rows, at fixed addresses. tokens: int64 [n, 1], mask: int64 [n, T]. run: of its CUDA graph."""

    binding: Any
    tokens: Buffer
    mask: Buffer
    run: Any


class DeviceRowDecoder(DevicePrompts, RowDecoder):
    """A decoder for rows that come and go, on a device.

    captures: whether CUDA graphs replay its steps, which takes a cache without states and windows: these would advance
    in rows that do not run.
    """

    captures = False
    chooses_candidates = True

    def decode_rows(self, first: int, tokens: Tokens, candidates: int | None = None) -> Logits | list[Candidates]:
        """Append one token to each of n rows from `first` on; return so many candidates of each, or logits [n, V]."""
        rows = range(first, first + len(tokens))
        self._check_room(int(self.lengths[rows.start : rows.stop].max()) + 1)
        bound = range(min(next_power_of_two(rows.stop), self.cache.batch_size)) if self.captures else rows
        lengths = self.lengths[bound.start : bound.stop] + 1
        step = self._step_of_rows(bound, int(lengths.max()))
        self.lengths[rows.start : rows.stop] += 1
        ids = self._host.array("tokens", step.tokens.shape, np.int64)
        ids[:] = 0
        ids[rows.start - bound.start : rows.stop - bound.start, 0] = tokens
        step.tokens.put(ids)
        mask = self._host.array("mask", step.mask.shape, np.int64)
        np.less(self._slots[: mask.shape[1]], lengths[:, None], out=mask, casting="unsafe")
        step.mask.put(mask)
        self._session.run_with_iobinding(step.binding, step.run)
        if candidates is not None and self._chooses(candidates):
            return self._reader.candidates(self._step_logits, rows, candidates, self._host)
        return self._reader.all(self._step_logits, rows, self._host)

    def _step_of_rows(self, rows: range, longest: int) -> _Step:
        """Return the step of rows of up to `longest` tokens."""
        total = max(SHORTEST, next_power_of_two(longest)) if self.captures else -(-longest // MASK_STEP) * MASK_STEP
        key = rows, min(total, self.cache.capacity)
        if key not in self._device_steps:
            self._device_steps[key] = self._new_step(*key)
        return self._device_steps[key]

    def _new_step(self, rows: range, total: int) -> _Step:
        tokens = Buffer((len(rows), 1), np.int64, self._provider)
        mask = Buffer((len(rows), total), np.int64, self._provider)
        binding = self._new_binding(self._session, np.zeros((len(rows), 1), np.int64), None, rows)
        tokens.bind_input(binding, "input_ids")
        mask.bind_input(binding, self._mask_name)
        self._step_logits.bind_output(binding, "logits", rows)
        # Without captures, steps of other rows and lengths come and go, so that only the last one is kept.
        if not self.captures:
            self._device_steps.clear()
        return _Step(binding, tokens, mask, self._session.new_graph_run() if self.captures else None)

    def _bind_step(self) -> None:
        super()._bind_step()
        self._device_steps: dict[tuple[range, int], _Step] = {}
        self._host = HostMemory(self._session, self._provider)
        self._step_logits = Buffer((self.cache.batch_size, 1, self._vocab_size), self._logits_dtype, self._provider)

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> StaticCache:
        self._prepare(batch_size, capacity, provider)
        self._written: NDArray[np.int64] = np.zeros(batch_size, np.int64)
        return new_static_cache(self._session, manifest, batch_size, capacity, provider, prefix)
