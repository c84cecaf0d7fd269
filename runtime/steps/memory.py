"""Where a step's token ids, mask and logits are, and how a run binds them: on the host, for both forms of cache.

static    `HostSteps`     past and present are one buffer, bound once; a step writes tokens and mask in place and runs
dynamic   `GrowingSteps`  every run returns a present, which is the past of the next run

`device.DeviceSteps` is the third kind. A `StepRunner` is handed one of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import LOGITS_START
from edgeformer.runtime.caches.cache import Cache
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.buffer import Rows
from edgeformer.runtime.steps.decode_graph import (
    ALL,
    LAST,
    BoundStates,
    DecodeGraph,
    Logits,
    Tokens,
    bind_input,
    bind_output,
)

PREFILL_CHUNK = 256
"""Tokens of a prompt per run on the CPU. Attention kernels also compute the masked half of a prompt; in chunks, only
the masked half of each chunk is wasted."""

TEAM_CHUNK = 512
"""Tokens per run of a prompt that no other row waits for, where kernels of our own run, which compute no masked half:
prompts are 1 to 5 % faster than in runs of 256, and without these kernels 3 to 10 % slower (135M, int4, Zen 5)."""

MOST_BINDINGS = 256
"""Bindings of steps that are kept; one takes 31 kB, and 0.6 ms to make, at 30 layers (measured)."""

KEPT_LOGITS = 8 * 2**20
"""Bytes of a prompt's logits that are kept for the next prompt. New memory costs a page fault for each 4 KB: 5 % of a
prompt of 40 tokens of tiny-llama. Larger vocabularies would take more memory, for less of the time.
"""

ONE = np.array(1, np.int64)
"""Added to arrays in place: a number of Python is made an array of first, which takes longer than to add it."""

Mask = NDArray[np.bool_]


class Candidates(NamedTuple):
    """The most likely tokens of a row, and all that are as likely as the last of them.

    ids: int64 [n], in ascending order; logits: [n].
    """

    ids: NDArray[np.int64]
    logits: Logits


class StepMemory(ABC):
    """The runs of a graph over a cache; lengths are checked and counted by the `StepRunner`.

    - chooses_candidates: whether `step` may return candidates.
    - runs_fewer_rows: whether a step of fewer rows is faster.
    - prefill_chunk: tokens of a prompt in one run that other rows wait for.
    - most_tokens: of a row in any run; None for any number.
    """

    chooses_candidates = False
    most_tokens: int | None = None
    runs_fewer_rows = False

    def __init__(self, graph: DecodeGraph, cache: Cache):
        self.graph = graph
        self.prefill_chunk = PREFILL_CHUNK
        self._cache = cache
        graph.begin_rows(cache.batch_size, cache.capacity)
        self._prompts: dict[tuple[Any, Rows], Any] = {}  # bindings of runs of several tokens, by session and rows
        self._prompt_logits = graph.new_logits(0)

    @property
    def prompt_chunk(self) -> int:
        """Tokens of a prompt in one run that no other row waits for."""
        # Other graphs return the logits of all tokens of a run.
        return (
            max(self.prefill_chunk, TEAM_CHUNK) if self.graph.has_team and self.graph.has_start else self.prefill_chunk
        )

    @abstractmethod
    def step(
        self, first: int, tokens: Tokens, lengths: NDArray[np.int64], longest: int,
        active: Mask | None, candidates: int | None,
    ) -> Logits | list[Candidates]:  # fmt: skip
        """Append one token to each of n rows from `first` on; return logits [n, V], which the next step overwrites.

        lengths: of all rows, before. longest: of these rows, behind. active: bool [n], False for rows whose token and
        logits mean nothing; None for none. candidates: how many of the most likely tokens are enough.
        """

    def run_prompt(self, row: int, tokens: Tokens, length: int) -> Logits:
        """Append a piece of a prompt to one row, of `length` tokens then; return the logits of its last token [V]."""
        session, inputs = self.graph.inputs_of(self.graph.session_of(row), tokens)
        count = 1 if self.graph.takes_start(session) else len(tokens)
        logits = self._kept_logits(count)
        self._run_row(session, row, inputs, length, logits)
        return logits[count - 1]

    def run_all(self, row: int, tokens: Tokens, length: int) -> Logits:
        """Append tokens to one row, of `length` then; return new logits of each [S, V]."""
        logits = self.graph.new_logits(len(tokens))
        session, inputs = self.graph.inputs_of(self.graph.session_of(row), tokens)
        self._run_row(session, row, inputs, length, logits)
        return logits

    def run_tokens(self, row: int, tokens: Tokens, length: int, *, last_only: bool = False) -> Logits:
        """Append a few tokens to one row, of `length` then; return logits [S, V] that the next call overwrites.

        last_only: those of the last token are enough, [1, V] where the graph can return them alone.
        """
        return self.run_all(row, tokens, length)

    def run_batch(self, ids: NDArray[np.int64], new: Mask, lengths: NDArray[np.int64]) -> Logits:
        """Append padded prompts [B, S] to all rows, of these lengths then; return logits [B, S, V]."""
        ids, logits = np.ascontiguousarray(ids), self.graph.new_logits(*ids.shape)
        binding = self.graph.new_binding(self.graph.session, ids, logits, None)
        self._cache.bind(binding)
        with self._cache.over(binding, new, lengths) as mask:
            bind_input(binding, self.graph.mask_name, mask)
            self.graph.session.run_with_iobinding(binding)
        return logits

    def forget_bindings(self) -> None:
        """Bind anew from the next run on, because a buffer of the sources has moved."""
        self._prompts.clear()

    def _run_row(self, session: Any, row: int, inputs: Mapping[str, NDArray[Any]], length: int, logits: Logits) -> None:
        """Run one row by itself, so that its result does not depend on the other rows. inputs: tokens first."""
        (name, values), *others = inputs.items()
        binding = self._rows_binding(session, row, name, values, logits[None])
        for other, array in others:
            bind_input(binding, other, array)
        states, before = self.graph.bound_states(binding, 1, values.shape[1]), [length - values.shape[1]]
        if states is not None:
            states.load(row, before)
        with self._cache.over(binding, np.ones(values.shape[:2], np.bool_), np.array([length]), row) as mask:
            bind_input(binding, self.graph.mask_name, mask)
            session.run_with_iobinding(binding)
        if states is not None:
            states.store(row, before)

    def _rows_binding(self, session: Any, rows: Rows, name: str, values: NDArray[Any], logits: Logits) -> Any:
        """Return a binding of a row, or of adjacent ones; that of a cache which stays in place is kept."""
        binding = self._prompts.get((session, rows)) if self._cache.in_place else None
        if binding is None:
            binding = self.graph.new_binding(session, values, logits, rows, name)
            self._cache.bind(binding, rows)
            if self._cache.in_place:
                if len(self._prompts) >= MOST_BINDINGS:
                    self._prompts.clear()
                self._prompts[session, rows] = binding
        else:
            bind_input(binding, name, values)
            bind_output(binding, "logits", logits)
            if self.graph.takes_start(session):
                bind_input(binding, LOGITS_START, LAST if logits.shape[1] < values.shape[1] else ALL)
        return binding

    def _kept_logits(self, tokens: int) -> Logits:
        """Return a kept array, or a new one for more bytes than `KEPT_LOGITS`."""
        if tokens > len(self._prompt_logits):
            logits = self.graph.new_logits(tokens)
            if logits.nbytes > KEPT_LOGITS:
                return logits
            self._prompt_logits = logits
        return self._prompt_logits[:tokens]


class _Step:
    """A binding of some rows; tokens [n] or [1, n], logits [n, V] and mask [n, T] are views of what is bound.

    next: int64 [2, n], the lengths for which the mask is made, and the places in it of the token behind each. columns:
    of the mask, 0 for none yet. states: of the tokens, where the graph reads or returns any.
    """

    __slots__ = (
        "binding",
        "columns",
        "lengths",
        "logits",
        "mask",
        "next",
        "places",
        "run",
        "slots",
        "states",
        "tokens",
    )

    def __init__(
        self, session: Any, binding: Any, tokens: NDArray[np.int64], logits: Logits, states: BoundStates | None
    ):
        self.run = session.run_with_iobinding
        self.binding, self.tokens, self.logits, self.states = binding, tokens, logits, states
        self.next = np.empty((2, len(logits)), np.int64)
        self.lengths, self.places = self.next
        self.columns = 0

    def bind_mask(self, name: str, mask: NDArray[np.int64], columns: int) -> None:
        """Bind a mask [n · T] of n rows."""
        self.slots, self.mask, self.columns = mask, mask.reshape(-1, columns), columns
        bind_input(self.binding, name, self.mask)


class HostSteps(StepMemory):
    """Steps over a static cache on the CPU.

    mask_step: the mask is as long as the longest row, rounded up to this many tokens; None for the whole capacity, so
    that no shape changes from step to step.
    """

    runs_fewer_rows = True

    def __init__(self, graph: DecodeGraph, cache: StaticCache, mask_step: int | None = None):
        super().__init__(graph, cache)
        rows, self._capacity = cache.batch_size, cache.capacity
        self._mask_step = mask_step or cache.capacity
        self._slots = np.arange(cache.capacity)
        self._tokens = np.zeros((rows, 1), np.int64)
        self._mask = np.empty(rows * cache.capacity, np.int64)
        self._logits = graph.new_logits(rows, 1)
        self._steps: dict[tuple[int, int, bool], _Step] = {}
        self._last: _Step | None = None  # the step whose mask is in the memory of all masks
        self._run_tokens = np.empty((1, 0), np.int64)
        self._run_mask = np.empty(cache.capacity, np.int64)
        self._run_logits = graph.new_logits(1, 0)
        self._runs: dict[tuple[Any, Rows], _Step] = {}  # of several tokens of a row, as they were bound last
        self._rows_logits = graph.new_logits(0)

    def step(
        self, first: int, tokens: Tokens, lengths: NDArray[np.int64], longest: int,
        active: Mask | None, candidates: int | None,
    ) -> Logits:  # fmt: skip
        """Append one token to each row. The row of a token that means nothing gets it behind its last one.

        A step that follows one of the same rows only adds a token of each to the mask. The weights of a step evict this
        code from the processor's caches, so every Python call here is a slow one.
        """
        count = len(tokens)
        rows = lengths[first : first + count]
        adapted = self.graph.adapters is not None and self.graph.adapts(range(first, first + count))
        step = self._steps.get((first, count, adapted))
        if step is None or step is not self._last or longest > step.columns or step.lengths.tobytes() != rows.tobytes():
            step = self._last = self._masked(first, rows, adapted, longest)
        step.slots[step.places] = 1
        step.tokens[:] = tokens
        if step.states is None:
            step.run(step.binding)
        else:
            before = rows.tolist()
            step.states.load(first, before)
            step.run(step.binding)
            step.states.store(first, before)
        np.add(step.next, ONE if active is None else active, step.next)
        return step.logits

    def run_tokens(self, row: int, tokens: Tokens, length: int, *, last_only: bool = False) -> Logits:
        """Run several tokens over the row's binding, to which another number of them binds ids, logits and states."""
        count, session = len(tokens), self.graph.session_of(row)
        if count > self._run_tokens.shape[1]:
            self._run_tokens, self._run_logits = np.empty((1, count), np.int64), self.graph.new_logits(1, count)
            self._runs.clear()
        returned = 1 if last_only and self.graph.takes_start(session) else count
        run = self._runs.get((session, row))
        if run is None or (run.tokens.shape[1], len(run.logits)) != (count, returned):
            ids, logits = self._run_tokens[:, :count], self._run_logits[:, :returned]
            binding = self._rows_binding(session, row, "input_ids", ids, logits)
            states = self.graph.bound_states(binding, 1, count)
            run = self._runs[session, row] = _Step(session, binding, ids, logits[0], states)
        columns = self._columns(length)
        if run.columns != columns:
            run.bind_mask(self.graph.mask_name, self._run_mask[:columns], columns)
        np.less(self._slots[:columns], length, out=run.slots, casting="unsafe")
        run.tokens[0] = tokens
        if run.states is not None:
            run.states.load(row, [length - count])
        run.run(run.binding)
        if run.states is not None:
            run.states.store(row, [length - count])
        return run.logits

    def run_rows(self, first: int, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> Logits:
        """Append several tokens [n, S] to each of n rows from `first` on; return logits [n, S, V].

        The next call overwrites them. lengths: of all rows, before. The graph `appends_to_rows`.
        """
        count, new = tokens.shape
        rows, before = range(first, first + count), lengths[first : first + count]
        if tokens.size > len(self._rows_logits):
            self._rows_logits = self.graph.new_logits(tokens.size)
        session, logits = self.graph.session_of_rows(rows), self._rows_logits[: tokens.size].reshape(count, new, -1)
        binding = self._rows_binding(session, rows, "input_ids", tokens, logits)
        columns = self._columns(int(before.max()) + new)
        mask, self._last = self._mask[: count * columns].reshape(count, columns), None
        np.less(self._slots[:columns], before[:, None] + new, out=mask, casting="unsafe")
        bind_input(binding, self.graph.mask_name, mask)
        states = self.graph.bound_states(binding, count, new)
        session.run_with_iobinding(binding)
        if states is not None:
            states.store(first, before.tolist())
        return logits

    def forget_bindings(self) -> None:
        """Bind anew from the next run on."""
        super().forget_bindings()
        self._steps.clear()
        self._runs.clear()

    def _rows_binding(self, session: Any, rows: Rows, name: str, values: NDArray[Any], logits: Logits) -> Any:
        """Return the binding of a row, or of adjacent ones, which is no longer that of the tokens that ran last."""
        self._runs.pop((session, rows), None)
        return super()._rows_binding(session, rows, name, values, logits)

    def _columns(self, longest: int) -> int:
        return min(-(-longest // self._mask_step) * self._mask_step, self._capacity)

    def _masked(self, first: int, lengths: NDArray[np.int64], adapted: bool, longest: int) -> _Step:
        """Return the step of rows of these lengths, with a mask for the longest of them."""
        count, columns = len(lengths), self._columns(longest)
        step, rows = self._steps.get((first, count, adapted)), range(first, first + count)
        if step is None:
            if len(self._steps) >= MOST_BINDINGS:
                self._steps.clear()
            session, ids, logits = self.graph.session_of_rows(rows), self._tokens[:count], self._logits[:count]
            binding = self.graph.new_binding(session, ids, logits, rows)
            self._cache.bind(binding, rows)
            states = self.graph.bound_states(binding, count, 1)
            step = self._steps[first, count, adapted] = _Step(session, binding, ids[:, 0], logits[:, 0], states)
        if step.columns != columns:
            step.bind_mask(self.graph.mask_name, self._mask[: count * columns], columns)
        np.less(self._slots[:columns], lengths[:, None], out=step.mask, casting="unsafe")
        step.lengths[:] = lengths
        step.places[:] = lengths + np.arange(0, count * columns, columns)
        return step


class GrowingSteps(StepMemory):
    """Steps over a dynamic cache: all of its rows run, and those that have no new token get padding."""

    def __init__(self, graph: DecodeGraph, cache: DynamicCache):
        super().__init__(graph, cache)
        self._tokens = np.zeros((cache.batch_size, 1), np.int64)
        self._logits = graph.new_logits(cache.batch_size, 1)
        self._session = graph.session_of_rows(range(cache.batch_size))
        self._binding = graph.new_binding(self._session, self._tokens, self._logits, None)

    def step(
        self, first: int, tokens: Tokens, lengths: NDArray[np.int64], longest: int,
        active: Mask | None, candidates: int | None,
    ) -> Logits:  # fmt: skip
        """Append one token to each of some rows."""
        rows = slice(first, first + len(tokens))
        self._tokens[rows, 0] = tokens
        new = np.zeros(self._tokens.shape, np.bool_)
        new[rows, 0] = True if active is None else active
        states = self.graph.bound_states(self._binding, len(new), 1)
        before = lengths.tolist()
        if states is not None:
            states.load(0, before)
        with self._cache.over(self._binding, new, lengths) as mask:
            bind_input(self._binding, self.graph.mask_name, mask)
            self._session.run_with_iobinding(self._binding)
        if states is not None:
            states.store(0, before)
        return self._logits[rows, 0]
