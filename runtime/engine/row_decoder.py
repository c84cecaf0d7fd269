"""Rows of one static cache, each with a length of its own, of which a decode step runs n adjacent ones.

    row m … m+n−1   running: a step binds these rows alone, so that rows that stand idle cost nothing
    other rows      free, held for a later request, or one whose prompt is being run

A binding for each m and n is made when it is first needed, and kept.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import LOGITS_START
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.engine.row_adapters import RowAdapters
from edgeformer.runtime.sessions.session import cache_dtype
from edgeformer.runtime.steps.decoder import LAST, Candidates, Logits, Tokens, bind_input, bind_output
from edgeformer.runtime.steps.static_decoder import StaticDecoder, layer_windows

MOST_BINDINGS = 256
"""Bindings of steps that are kept; one takes 31 kB, and 0.6 ms to make, at 30 layers (measured)."""

ALL = np.array([0], np.int64)
"""The `logits_start` of a run that returns the logits of all its tokens."""

MASK_STEP = 32
"""The mask of a step is as long as the longest row, rounded up to this many tokens, so that it is seldom bound.

Attention computes as many scores as the mask has columns: steps of 64 rows of up to 191 tokens took 14.1 ms with masks
in steps of 256, and 12.4 ms in steps of 16 (tiny-llama, the fastest of 96).
"""


KEPT_LOGITS = 8 * 2**20
"""Bytes of a prompt's logits that are kept for the next prompt. New memory costs a page fault for each 4 KB: 5 % of a
prompt of 40 tokens of tiny-llama. Larger vocabularies would take more memory, for less of the time.
"""


class RowDecoder(StaticDecoder):
    """A decoder for rows that come and go. Memory for a row is taken as it is written, and given back by `release`.

    chooses_candidates: whether `decode_rows` may return candidates.
    prefill_graph_steps: run steps of enough rows over the prefill graph, where the bundle has one. adapters: those of
    the rows; a step runs the adapter graph while any of its rows has one.
    """

    prefill_graph_steps = False
    chooses_candidates = False
    adapters: RowAdapters | None = None
    _prompt_logits: Logits

    def prefill(self, row: int, tokens: Tokens, *, chunk: int | None = None) -> Logits:
        """Append a prompt to one row, with its adapter; return logits [V] that the next prompt overwrites."""
        adapted = None if self.adapters is None else self.adapters.session_of(row)
        if adapted is None:
            return super().prefill(row, tokens, chunk=chunk)
        sessions = self._session, self._prefill
        self._session, self._prefill = adapted, None
        try:
            return super().prefill(row, tokens, chunk=chunk)
        finally:
            self._session, self._prefill = sessions

    def decode_rows(self, first: int, tokens: Tokens, candidates: int | None = None) -> Logits | list[Candidates]:
        """Append one token to each of n rows from `first` on; return logits [n, V], which the next step overwrites.

        candidates: how many of the most likely tokens are enough, for decoders that have the logits on a device.
        """
        count = len(tokens)
        lengths = self.lengths[first : first + count]
        longest = int(lengths.max()) + 1
        self._check_room(longest)
        lengths += 1
        total = min(-(-longest // MASK_STEP) * MASK_STEP, self.cache.capacity)
        mask = self._row_mask[: count * total].reshape(count, total)
        np.less(self._slots[:total], lengths[:, None], out=mask, casting="unsafe")
        self._tokens[:count, 0] = tokens
        session, binding = self._step_of(range(first, first + count), mask)
        session.run_with_iobinding(binding)
        return self._logits[:count, 0]

    def decode_tokens(self, row: int, tokens: Tokens) -> Logits:
        """Append several tokens to a row without an adapter; return logits [n, V], which the next call overwrites."""
        count = len(tokens)
        if count > self._run_logits.shape[1]:
            self._run_tokens = np.empty((1, count), np.int64)
            self._run_logits: Logits = np.empty((1, count, self._vocab_size), self._logits_dtype)
            self._runs.clear()
        key = row, count
        ids, logits = self._run_tokens[:, :count], self._run_logits[:, :count]
        if key not in self._runs:
            if len(self._runs) >= MOST_BINDINGS:
                self._runs.clear()
            self._runs[key] = self._new_binding(self._session, ids, logits, row)
        ids[0] = tokens
        self._run(self._session, self._runs[key], np.ones(ids.shape, np.bool_), row)
        return logits[0]

    def take(self, row: int) -> None:
        """Make a row empty."""
        self.cut(row, 0)
        self.cache.clear_row(row)

    def cut(self, row: int, length: int) -> None:
        """Take back the tokens of a row behind the first `length`; what it had is still in its memory."""
        self.written(row)
        super().cut(row, length)

    def move(self, source: int, target: int) -> None:
        """Replace a row by a copy of another one."""
        self.cut(target, 0)
        self.cache.move_row(source, target, int(self.lengths[source]))
        self.lengths[target] = self.lengths[source]
        if self.adapters is not None:
            self.adapters.set(target, self.adapters.names[source])

    def copy(self, source: int, target: int, length: int) -> None:
        """Begin an empty row with the first tokens of another one, of a cache that can be cut to them."""
        self.cache.move_row(source, target, length)
        self.lengths[target] = length

    def release(self, row: int) -> None:
        """Give the memory of a row back; it has no tokens then."""
        self.lengths[row] = self._written[row] = 0
        self.cache.release_row(row)

    def written(self, row: int) -> int:
        """Return the most tokens that a row has had since `release`: its memory is that of so many."""
        self._written[row] = max(self._written[row], self.lengths[row])
        return int(self._written[row])

    def forget_bindings(self) -> None:
        """Bind anew from the next step on, because a buffer of the decoder's other inputs has moved."""
        self._steps.clear()
        self._runs.clear()
        self._prompts.clear()

    def _new_logits(self, tokens: int) -> Logits:
        """Return a kept array, or a new one for more bytes than `KEPT_LOGITS`."""
        if tokens > len(self._prompt_logits):
            logits = super()._new_logits(tokens)
            if logits.nbytes > KEPT_LOGITS:
                return logits
            self._prompt_logits = logits
        return self._prompt_logits[:tokens]

    def _run_row(self, session: Any, row: int, tokens: Tokens, logits: Logits) -> None:
        """Run a piece of a prompt over a binding of the row's cache that is kept."""
        ids = np.asarray(tokens, np.int64)[None]
        key = session, row
        if key not in self._prompts:
            if len(self._prompts) >= MOST_BINDINGS:
                self._prompts.clear()
            self._prompts[key] = self._new_binding(session, ids, logits[None], row)
        bind_input(self._prompts[key], "input_ids", ids)
        bind_output(self._prompts[key], "logits", logits[None])
        if self._shortens(session):
            bind_input(self._prompts[key], LOGITS_START, LAST if len(logits) < len(tokens) else ALL)
        self._run(session, self._prompts[key], np.ones(ids.shape, np.bool_), row)

    def _step_of(self, rows: range, mask: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the session and the binding of a step of adjacent rows."""
        key = rows, self.adapters is not None and self.adapters.any_of(rows)
        if key not in self._steps:
            if len(self._steps) >= MOST_BINDINGS:
                self._steps.clear()
            session = None if self.adapters is None else self.adapters.session_of_rows(rows)
            if session is None:
                # The prefill graph has other weights, so over it a row's tokens would depend on how many rows run.
                session = self._session_for(len(rows)) if self.prefill_graph_steps else self._session
            binding = self._new_binding(session, self._tokens[: len(rows)], self._logits[: len(rows)], rows)
            self._steps[key] = (session, binding, 0)
        session, binding, bound = self._steps[key]
        if bound != mask.shape[1]:
            bind_input(binding, self._mask_name, mask)
            self._steps[key] = (session, binding, mask.shape[1])
        return session, binding

    def _bind_step(self) -> None:
        self._steps: dict[tuple[range, bool], tuple[Any, Any, int]] = {}
        self._runs: dict[tuple[int, int], Any] = {}  # of several tokens of one row
        self._prompts: dict[tuple[Any, int], Any] = {}  # of a piece of a row's prompt, by session and row
        self._prompt_logits = super()._new_logits(0)
        self._run_tokens = np.empty((1, 0), np.int64)
        self._run_logits = np.empty((1, 0, self._vocab_size), self._logits_dtype)

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> StaticCache:
        self._slots = np.arange(capacity)
        self._written = np.zeros(batch_size, np.int64)
        self._mask = np.empty(capacity, np.int64)
        self._row_mask = np.empty(batch_size * capacity, np.int64)
        windows = layer_windows(self._session, manifest.cache, prefix)
        return StaticCache(
            manifest.cache, cache_dtype(manifest), batch_size, capacity, provider, windows, prefix, reserved=True
        )
