"""Steps over a static cache on a device, which copy as little as they can.

    host     token ids, mask  ──►  device     decode graph over the cache, at fixed addresses
                                              logits [B, 1, V] stay there
    host     the most likely tokens, or all logits if rules or the sampler need them  ◄──

What crosses is page-locked on the host (`pinned_memory`). All that a step reads and writes stays where it is, so that a
CUDA graph may replay its kernels. onnxruntime keeps each captured graph as long as its session, and a graph is of use
only for the memory that it was captured over. So that memory is kept, too, and is lent to one request after the other
(`CapturedSteps`).

A step is captured for the first 1, 2, 4, … rows. Rows among them that do not run get a dummy token behind their last
one, which the next real one overwrites. A state of fixed size, or a window, would advance by it: such rows are captured
only where all of them run in every step.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import REQUEST_LENGTH
from edgeformer.errors import RequestError
from edgeformer.manifest.providers import CPU, Provider
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.buffer import Buffer
from edgeformer.runtime.sessions.pinned_memory import HostMemory
from edgeformer.runtime.sessions.providers import sessions_of
from edgeformer.runtime.sessions.session import onnxruntime
from edgeformer.runtime.steps.decode_graph import DecodeGraph, Logits, Tokens, bind_input
from edgeformer.runtime.steps.device_logits import MOST_CANDIDATES, device_logits
from edgeformer.runtime.steps.memory import Candidates, Mask, StepMemory

SHORTEST = 256
"""Tokens of the smallest memory that is kept; each larger one has twice as many, up to the context."""

DEVICE_CHUNK = 1024
"""Tokens of a prompt per run. Below about 300 (989 TFLOP/s of fp16 over 3.35 TB/s, NVIDIA's figures for an H100) a run
waits for the weights, and not for the arithmetic."""

CHUNK_BYTES = 2**28
"""Bytes of the logits of such a run at most; a chunk of a large vocabulary is shorter."""


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number of at least 1."""
    return 1 << (number - 1).bit_length()


@dataclass
class _Step:
    """A step of some rows, at fixed addresses. tokens: int64 [n, 1], mask: int64 [n, T].

    request_lengths: int64 [n]; None where the graph does not read them.

    run: options of the runs that capture a CUDA graph of it and replay that; None where its kernels are launched one by
    one. of_thread: whether a thread has captured it; onnxruntime keeps the graphs of each thread apart.
    """

    binding: Any
    tokens: Buffer
    mask: Buffer
    request_lengths: Buffer | None
    run: Any
    of_thread: local = field(default_factory=local)

    @property
    def captured(self) -> bool:
        """Whether this thread has captured the step."""
        return self.run is None or hasattr(self.of_thread, "captured")


class DeviceSteps(StepMemory):
    """Steps over a static cache on a device.

    - captures: whether CUDA graphs replay the steps.
    - mask_step: the mask is as long as the longest row, rounded up to this many tokens (to a power of two where steps
      are captured); None for the whole capacity.
    """

    chooses_candidates = True

    def __init__(
        self,
        graph: DecodeGraph,
        cache: StaticCache,
        provider: Provider,
        captures: bool = False,
        mask_step: int | None = None,
    ):
        super().__init__(graph, cache)
        self.cache = cache
        self._provider = provider
        self._captures = captures
        self._mask_step = mask_step
        self._slots = np.arange(cache.capacity)
        self._logits = Buffer((cache.batch_size, 1, graph.vocab_size), graph.logits_dtype.type, provider)
        self._reader = device_logits(graph.logits_dtype, provider)
        self._steps: dict[tuple[range, int], _Step] = {}
        self.host = HostMemory(graph.session, provider)
        self.most_tokens = sessions_of(provider).most_tokens(onnxruntime())
        self.prefill_chunk = DEVICE_CHUNK
        if not graph.has_start:
            bytes_per_token = graph.vocab_size * graph.logits_dtype.itemsize
            self.prefill_chunk = max(1, min(DEVICE_CHUNK, CHUNK_BYTES // bytes_per_token))

    def run_batch(self, ids: NDArray[np.int64], new: Mask, lengths: NDArray[np.int64]) -> Logits:
        """Append padded prompts to all rows; those of more tokens than a run may have go row by row, in pieces."""
        most = self.most_tokens
        if most is None or ids.shape[1] <= most:
            return super().run_batch(ids, new, lengths)
        logits = self.graph.new_logits(*ids.shape)
        logits[:] = 0
        for row, length in enumerate(lengths.tolist()):
            for start in range(0, length, most):
                piece = ids[row, start : min(start + most, length)]
                logits[row, start : start + len(piece)] = self.run_all(row, piece, start + len(piece))
        return logits

    def begin(self) -> None:
        """Make the memory ready for its next borrower, whose caller may still have logits of the last one."""
        self.cache.clear_states()
        self.host = HostMemory(self.graph.session, self._provider)

    def run_prompt(self, row: int, tokens: Tokens, length: int) -> Logits:
        """Append a piece of a prompt to one row; return the logits of its last token [V]: others stay on the device."""
        ids, session = np.asarray(tokens, np.int64)[None], self.graph.session
        binding = self.graph.new_binding(session, ids, None, row)
        self.cache.bind(binding, row)
        binding.bind_output("logits", self._provider.name)
        with self.cache.over(binding, np.ones(ids.shape, np.bool_), np.array([length]), row) as mask:
            bind_input(binding, self.graph.mask_name, mask)
            session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1]  # they were bound last
        return self._reader.row(logits, logits.shape()[1] - 1)

    def step(
        self, first: int, tokens: Tokens, lengths: NDArray[np.int64], longest: int,
        active: Mask | None, candidates: int | None,
    ) -> Logits | list[Candidates]:  # fmt: skip
        """Append one token to each of some rows; copy so many candidates of each from the device, or all logits."""
        rows = range(first, first + len(tokens))
        self._run_step(rows, tokens, lengths)
        read = rows if self._provider.addresses_rows else range(rows.stop)
        if candidates is not None and candidates <= MOST_CANDIDATES and candidates < self.graph.vocab_size:
            return self._reader.candidates(self._logits, read, candidates, self.host)[-len(rows) :]
        return self._reader.all(self._logits, read, self.host)[-len(rows) :]

    def _run_step(self, rows: range, tokens: Tokens, lengths: NDArray[np.int64]) -> None:
        bound = rows if self._provider.addresses_rows else range(rows.stop)
        if self._captures:
            bound = range(min(next_power_of_two(rows.stop), self.cache.batch_size))
        elif bound != rows and not self.cache.trimmable:
            kept = {row: self.cache.snapshot(row) for row in range(rows.start)}
            self._run_bound(bound, rows, tokens, lengths)
            for row, states in kept.items():
                self.cache.restore(states, row)
            return
        self._run_bound(bound, rows, tokens, lengths)

    def _run_bound(self, bound: range, rows: range, tokens: Tokens, lengths: NDArray[np.int64]) -> None:
        """Run a step of the rows `bound`, of which `rows` get tokens and the others a dummy one."""
        lengths = lengths[bound.start : bound.stop]
        step = self._step_of(bound, int(lengths.max()) + 1)
        ids = self.host.array("tokens", step.tokens.shape, np.int64)
        ids[:] = 0
        ids[rows.start - bound.start : rows.stop - bound.start, 0] = tokens
        step.tokens.put(ids)
        mask = self.host.array("mask", step.mask.shape, np.int64)
        np.less_equal(self._slots[: mask.shape[1]], lengths[:, None], out=mask, casting="unsafe")
        step.mask.put(mask)
        if step.request_lengths is not None and self.graph.request_lengths is not None:
            step.request_lengths.put(self.graph.request_lengths[bound.start : bound.stop])
        if not self._provider.integers_on_device:  # what the device needs of them is copied as they are bound
            self._bind(step)
        session = self.graph.session
        if step.captured:
            session.run_with_iobinding(step.binding, step.run)
            return
        # A capture runs the step several times. Slots of tokens get the same numbers each time; states would advance.
        before = self.cache.snapshot()
        session.run_with_iobinding(step.binding, step.run)
        step.of_thread.captured = True
        if any(each is not None for each in before):
            self.cache.restore(before)
            session.run_with_iobinding(step.binding, step.run)

    def _step_of(self, rows: range, longest: int) -> _Step:
        """Return the step of rows of up to `longest` tokens."""
        if self._mask_step is None:
            columns = self.cache.capacity
        elif self._captures:
            columns = max(SHORTEST, next_power_of_two(longest))
        else:
            columns = -(-longest // self._mask_step) * self._mask_step
        key = rows, min(columns, self.cache.capacity)
        if key not in self._steps:
            self._steps[key] = self._new_step(*key)
        return self._steps[key]

    def _new_step(self, rows: range, columns: int) -> _Step:
        provider = self._provider if self._provider.integers_on_device else CPU
        tokens, mask = Buffer((len(rows), 1), np.int64, provider), Buffer((len(rows), columns), np.int64, provider)
        lengths = None if self.graph.request_lengths is None else Buffer((len(rows),), np.int64, provider)
        session = self.graph.session
        binding = self.graph.new_binding(session, np.zeros((len(rows), 1), np.int64), None, rows)
        self.cache.bind(binding, rows)
        self._logits.bind_output(binding, "logits", rows)
        # Without captures, steps of other rows and lengths come and go, so that only the last one is kept.
        if not self._captures:
            self._steps.clear()
        step = _Step(binding, tokens, mask, lengths, session.new_graph_run() if self._captures else None)
        self._bind(step)
        return step

    def _bind(self, step: _Step) -> None:
        """Bind the token ids and the mask of a step, and how long its requests may become."""
        step.tokens.bind_input(step.binding, "input_ids")
        step.mask.bind_input(step.binding, self.graph.mask_name)
        if step.request_lengths is not None:
            step.request_lengths.bind_input(step.binding, REQUEST_LENGTH)


class CapturedSteps:
    """The memory of a session's steps over which CUDA graphs were captured: some in use, and some for later requests.

    context: tokens of the longest text. The memory of a thread's finished requests is kept for its later ones: one for
    each number of rows and each power of two of tokens, times the requests of that shape that ran at once.
    """

    def __init__(self, context: int):
        self._context = context
        self._of_thread = local()

    def capacity_for(self, tokens: int) -> int:
        """Return the tokens of a row of the memory for so many."""
        return min(max(SHORTEST, next_power_of_two(tokens)), max(self._context, tokens))

    def take(self, rows: int, tokens: int, make: Callable[[], DeviceSteps]) -> DeviceSteps:
        """Return memory, which is the caller's until it `lend`s it to a runner. make: new one.

        Where there is no room for new memory, that which is free is dropped, and its graphs are never replayed.
        """
        free = self._free()
        memory = free[rows, tokens].pop() if free[rows, tokens] else _made(make, free)
        memory.begin()
        return memory

    def lend(self, owner: Any, rows: int, tokens: int, memory: DeviceSteps) -> None:
        """Let memory belong to an owner until that is collected."""
        weakref.finalize(owner, self._free()[rows, tokens].append, memory)

    def _free(self) -> defaultdict[tuple[int, int], list[DeviceSteps]]:
        if not hasattr(self._of_thread, "free"):
            self._of_thread.free = defaultdict(list)
        free: defaultdict[tuple[int, int], list[DeviceSteps]] = self._of_thread.free
        return free


def _made(make: Callable[[], DeviceSteps], free: Mapping[tuple[int, int], list[DeviceSteps]]) -> DeviceSteps:
    """Return new memory; drop that which is free if there is no room otherwise."""
    try:
        return make()
    except RequestError:
        if not any(free.values()):
            raise
    # Here the error, and with it what was allocated before it, is gone.
    for kept in free.values():
        kept.clear()
    return make()
