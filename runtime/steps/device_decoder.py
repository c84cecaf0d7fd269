"""A decoder over a static cache on a device, whose steps copy as little as they can.

    host     token ids, mask  ──►  device     decode graph over the cache, at fixed addresses
                                              logits [B, 1, V] stay there
    host     the most likely tokens, or all logits if rules or the sampler need them  ◄──

What crosses is page-locked on the host (`pinned_memory`). All that a step reads and writes stays where it is, so that a
CUDA graph may replay its kernels. onnxruntime keeps each captured graph as long as its session, and a graph is of use
for the memory that it was captured over alone. So that memory is kept, too, and is lent to one request after the other
(`CapturedSteps`).
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.buffer import Buffer, Rows
from edgeformer.runtime.sessions.pinned_memory import HostMemory
from edgeformer.runtime.steps.decoder import Candidates, Decoder, Logits, Mask, Tokens
from edgeformer.runtime.steps.device_logits import MOST_CANDIDATES, device_logits
from edgeformer.runtime.steps.static_decoder import StaticDecoder, new_static_cache

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


class StepMemory:
    """Memory of decode steps at fixed addresses: a cache, and the token ids, mask and logits of its rows.

    run: options of the runs that capture a CUDA graph over it and replay it; None where a step launches its kernels one
    by one.
    """

    def __init__(self, cache: StaticCache, logits: Buffer, provider: Provider, run: Any = None):
        self.cache = cache
        self.logits = logits
        self.tokens = Buffer((cache.batch_size, 1), np.int64, provider)
        self.mask = Buffer((cache.batch_size, cache.capacity), np.int64, provider)
        self.run = run
        self._of_thread = local()

    @property
    def captured(self) -> bool:
        """Whether this thread has captured the step: onnxruntime keeps the graphs of each thread apart."""
        return hasattr(self._of_thread, "captured")

    def capture(self) -> None:
        """Remember that this thread has captured the step."""
        self._of_thread.captured = True


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

    def lend(self, decoder: Any, rows: int, tokens: int, make: Callable[[], StepMemory]) -> StepMemory:
        """Return memory for a decoder, to which it belongs until that is collected; make: new one.

        Where there is no room for new memory, that which is free is dropped, and its graphs are never replayed.
        """
        if not hasattr(self._of_thread, "free"):
            self._of_thread.free = defaultdict(list)
        free: defaultdict[tuple[int, int], list[StepMemory]] = self._of_thread.free
        shape = rows, tokens
        memory = free[shape].pop() if free[shape] else _made(make, free)
        memory.cache.clear_states()
        weakref.finalize(decoder, free[shape].append, memory)
        return memory


def _made(make: Callable[[], StepMemory], free: Mapping[tuple[int, int], list[StepMemory]]) -> StepMemory:
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


class DevicePrompts(StaticDecoder):
    """A static decoder whose prompts run on a device, in longer chunks than on the CPU."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._reader = device_logits(np.dtype(self._logits_dtype), self._provider)
        self.prefill_chunk = DEVICE_CHUNK
        if not self._has_start:
            self.prefill_chunk = max(1, min(DEVICE_CHUNK, CHUNK_BYTES // self._logits[0].nbytes))

    def prefill(self, row: int, tokens: Tokens, *, chunk: int | None = None) -> Logits:
        """Append a prompt to one row; return the logits of its last token [V], which alone leave the device."""
        chunk = chunk or self.prefill_chunk
        for start in range(0, len(tokens), chunk):
            ids = np.asarray(tokens[start : start + chunk], np.int64)[None]
            binding = self._new_binding(self._session, ids, None, row)
            self._run(self._session, binding, np.ones(ids.shape, np.bool_), row)
        logits = binding.get_outputs()[-1]  # they were bound last
        return self._reader.row(logits, logits.shape()[1] - 1)

    def _chooses(self, count: int) -> bool:
        """Return whether the device finds so many candidates."""
        return count <= MOST_CANDIDATES and count < self._vocab_size

    def decode_tokens(self, row: int, tokens: Tokens) -> Logits:
        """Append several tokens to one row in one run; return the logits after each [S, V]."""
        return Decoder.decode_tokens(self, row, tokens)

    def _new_binding(self, session: Any, tokens: NDArray[np.int64], logits: Logits | None, rows: Rows = None) -> Any:
        """Leave the logits on the device where there is no array for them."""
        binding = super()._new_binding(session, tokens, logits, rows)
        if logits is None:
            binding.bind_output("logits", self._provider)
        return binding

    def _prepare(self, batch_size: int, capacity: int, provider: Provider) -> None:
        """Make what runs of prompts need."""
        self._provider: Provider = provider
        self._slots = np.arange(capacity)
        self._mask = np.empty(batch_size * capacity, np.int64)


class DeviceDecoder(DevicePrompts):
    """A static decoder on a device.

    captured: where memory with captured steps comes from; None for memory of its own, and no CUDA graphs.
    """

    def __init__(self, *arguments: Any, captured: CapturedSteps | None = None, **options: Any):
        self._captured = captured
        super().__init__(*arguments, **options)

    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Run a step, and copy the logits of all tokens from the device."""
        self._run_step(tokens, active)
        return self._reader.all(self._memory.logits, range(len(self.lengths)), self._host)

    def decode_candidates(self, tokens: Tokens, active: Mask | None, count: int) -> list[Candidates] | None:
        """Run a step, and copy the most likely tokens of each row from the device."""
        if not self._chooses(count):
            return None
        self._run_step(tokens, active)
        return self._reader.candidates(self._memory.logits, range(len(self.lengths)), count, self._host)

    def keep_rows(self, rows: Sequence[int]) -> list[int] | None:
        """Return None: fewer rows are another shape, and a step waits for the weights, however few there are."""
        return None

    def _run_step(self, tokens: Tokens, active: Mask | None) -> None:
        lengths = self.lengths + (1 if active is None else active)
        self._check_room(int(lengths.max()))
        self.lengths[:] = lengths
        memory = self._memory
        mask, ids = (self._host.array(*each) for each in self._sent)
        np.less(self._slots, lengths[:, None], out=mask, casting="unsafe")
        ids[:, 0] = tokens
        memory.mask.put(mask)
        memory.tokens.put(ids)
        if memory.run is None or memory.captured:
            self._session.run_with_iobinding(self._step, memory.run)
            return
        # A capture runs the step several times. Slots of tokens get the same numbers each time; states would advance.
        before = self.cache.snapshot()
        self._session.run_with_iobinding(self._step, memory.run)
        memory.capture()
        if any(each is not None for each in before):
            self.cache.restore(before)
            self._session.run_with_iobinding(self._step, memory.run)

    def _bind_step(self) -> None:
        memory = self._memory
        memory.tokens.bind_input(self._step, "input_ids")
        memory.mask.bind_input(self._step, self._mask_name)
        memory.logits.bind_output(self._step, "logits")

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> StaticCache:
        captured = self._captured
        if captured is not None:
            capacity = captured.capacity_for(capacity)

        def make() -> StepMemory:
            cache = new_static_cache(self._session, manifest, batch_size, capacity, provider, prefix)
            logits = Buffer((batch_size, 1, self._vocab_size), self._logits_dtype, provider)
            run = None if captured is None else self._session.new_graph_run()
            return StepMemory(cache, logits, provider, run)

        self._prepare(batch_size, capacity, provider)
        # Of this decoder alone, since its callers may hold the logits of its last step.
        self._host = HostMemory(self._session, provider)
        self._sent = (("mask", (batch_size, capacity), np.int64), ("tokens", (batch_size, 1), np.int64))
        self._memory = make() if captured is None else captured.lend(self, batch_size, capacity, make)
        return self._memory.cache
