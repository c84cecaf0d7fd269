"""Feed a decoder graph over a cache of its form: `prefill` one row, `decode_one_token` for all rows.

static    past and present are one buffer, bound once; a step writes the new tokens and the mask in place and runs
growing   every run makes a present that is the past of the next
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract import CacheGeometry, past_names
from edgeformer.manifest import Manifest, Provider
from edgeformer.runtime.dynamic_cache import DynamicCache
from edgeformer.runtime.encoder_outputs import EncoderOutputs
from edgeformer.runtime.kv_cache import KVCache
from edgeformer.runtime.session import cache_dtype

PREFILL_CHUNK = 256
"""Tokens of a prompt fed at once. Attention kernels compute the masked half of one long prompt, but not of a chunk's
past."""


Tokens = Sequence[int] | NDArray[np.int64]
Mask = NDArray[np.bool_]
Logits = NDArray[Any]
"""float32 from our graphs; those of others may give the precision that they compute in."""


@dataclass(frozen=True)
class PrefillSession:
    """A graph over the same caches that is faster for runs of `from_tokens` or more, all rows together.

    It gives logits of the last token alone: [B, 1, V].
    """

    session: Any
    from_tokens: int


def new_decoder(
    session: Any,
    manifest: Manifest,
    batch_size: int,
    capacity: int,
    provider: Provider = "cpu",
    sources: EncoderOutputs | None = None,
    view: PrefillSession | None = None,
) -> "Decoder":
    """A decoder of `batch_size` empty rows of up to `capacity` tokens, over the form of cache that the graph has."""
    kind = DynamicDecoder if manifest.cache_form == "dynamic" else StaticDecoder
    return kind(session, manifest, batch_size, capacity, provider, sources, view)


def needs_numbers(manifest: Manifest) -> bool:
    """Whether a static cache must hold finite numbers where no token is: ONNX's Attention multiplies them with zero."""
    return manifest.ops == "standard" and manifest.cache_form == "static"


class Decoder(ABC):
    """One request: a cache for its rows, their lengths, and the bindings of its decode steps."""

    cache: KVCache | DynamicCache

    def __init__(
        self,
        session: Any,
        manifest: Manifest,
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        sources: EncoderOutputs | None = None,
        view: PrefillSession | None = None,
    ):
        self._session = session
        self._view = view
        self._sources = sources
        self._mask_name = "attention_mask" if sources is None else "decoder_attention_mask"
        self._vocab_size = manifest.vocab_size
        logits = next(output for output in session.get_outputs() if output.name == "logits")
        self._logits_dtype = np.float16 if logits.type == "tensor(float16)" else np.float32
        part = "" if sources is None else "decoder."
        self.cache = self._new_cache(manifest, batch_size, capacity, provider, part)
        self.lengths = np.zeros(batch_size, np.int64)
        # Decode steps: one binding, filled in place.
        self._tokens = np.zeros((batch_size, 1), np.int64)
        self._logits = np.empty((batch_size, 1, self._vocab_size), self._logits_dtype)
        self._step_session = self._fastest(batch_size)
        self._step = self._new_binding(self._step_session, self._tokens, self._logits)
        self._bind_step()

    def prefill(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """Append a prompt to one row, `chunk` tokens at a time. Returns the logits of its last token [V]."""
        buffer = np.empty((0, self._vocab_size), self._logits_dtype)
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            session = self._fastest(len(piece))
            rows = 1 if self._view is not None and session is self._view.session else len(piece)
            if len(buffer) < rows:
                buffer = np.empty((rows, self._vocab_size), self._logits_dtype)
            self._run_row(session, row, piece, buffer[:rows])
        return buffer[rows - 1]

    def prefill_all(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """As `prefill`, but returns the logits of every token [S, V]."""
        logits = np.empty((len(tokens), self._vocab_size), self._logits_dtype)
        for start in range(0, len(tokens), chunk):
            self._run_row(self._session, row, tokens[start : start + chunk], logits[start : start + chunk])
        return logits

    def _fastest(self, tokens: int) -> Any:
        """The session for a run of so many tokens that only needs the last ones' logits."""
        return self._session if self._view is None or tokens < self._view.from_tokens else self._view.session

    def _run_row(self, session: Any, row: int, tokens: Tokens, logits: Logits) -> None:
        """One row by itself: its result is the same whatever stands in the other rows."""
        ids = np.asarray(tokens, np.int64)[None]
        self._run(session, self._new_binding(session, ids, logits[None], row), np.ones(ids.shape, np.bool_), row)

    def prefill_batch(self, tokens: NDArray[np.int64], lengths: Tokens) -> Logits:
        """Feed right-padded prompts [B, S] to empty rows in one run, as simple clients do. Returns logits [B, S, V]."""
        return self._run_batch(tokens, np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None])

    def _run_batch(self, tokens: NDArray[np.int64], new: Mask) -> Logits:
        """Feed padded prompts [B, S] to empty rows in one run; new: where they have tokens [B, S]."""
        assert not self.lengths.any(), "only empty rows take a padded batch"
        self._check_room(tokens.shape[1])
        tokens = np.ascontiguousarray(tokens)
        logits = np.empty((*tokens.shape, self._vocab_size), self._logits_dtype)
        self._run(self._session, self._new_binding(self._session, tokens, logits), new)
        return logits

    @abstractmethod
    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Append one token to every active row (all, by default). Returns logits [B, V], overwritten by the next step.

        A row that is not active is finished: it no longer grows, and what is computed for it is never read.
        """

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Let every row r continue from what row parents[r] was; the rows must read the same source.

        Returns how many bytes were copied.
        """
        copied = self.cache.reorder(parents, int(self.lengths.max()))
        self.lengths = self.lengths[parents]
        return copied

    @abstractmethod
    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, part: str
    ) -> KVCache | DynamicCache:
        """An empty cache; part: what its tensors are called."""

    def _new_binding(self, session: Any, tokens: NDArray[np.int64], logits: Logits, row: int | None = None) -> Any:
        """A binding of tokens, logits and what the decoder reads of its source, for all rows or one."""
        binding = session.io_binding()
        _bind_input(binding, "input_ids", tokens)
        _bind_output(binding, "logits", logits)
        if self._sources is not None:
            self._sources.bind(binding, row)
        return binding

    def _run(self, session: Any, binding: Any, new: Mask, row: int | None = None) -> None:
        """Run what is bound for all rows or one; new: which of the tokens it has count [R, S]."""
        rows = slice(None) if row is None else slice(row, row + 1)
        lengths = self.lengths[rows] + new.sum(1)
        self._check_room(int(lengths.max()))
        self.lengths[rows] = lengths
        with self._over_cache(binding, new, row) as mask:
            _bind_input(binding, self._mask_name, mask)
            session.run_with_iobinding(binding)

    @abstractmethod
    def _bind_step(self) -> None:
        """Bind what all decode steps have in common."""

    @abstractmethod
    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        """Bind what changes from run to run; around the run itself, give its attention mask."""

    def _check_room(self, length: int) -> None:
        if length > self.cache.capacity:
            raise ValueError(f"{length} tokens do not fit a cache of {self.cache.capacity}")


class StaticDecoder(Decoder):
    """Over buffers that are allocated and bound once: a token stands in the slot of its position."""

    cache: KVCache

    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Over a mask of the whole cache, so that nothing changes its shape from step to step.

        A step leaves the weights in the processor's caches, and none of this code: every call here is a slow one.
        """
        lengths = self.lengths + (1 if active is None else active)
        self._check_room(int(lengths.max()))
        self.lengths[:] = lengths
        np.less(self._slots, lengths[:, None], out=self._step_mask, casting="unsafe")
        self._tokens[:, 0] = tokens
        if self._copies:
            self._bind_step()
        self._step_session.run_with_iobinding(self._step)
        return self._logits[:, 0]

    def _bind_step(self) -> None:
        _bind_input(self._step, "input_ids", self._tokens)
        _bind_input(self._step, self._mask_name, self._step_mask)

    def _new_cache(self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, part: str) -> KVCache:
        self._slots = np.arange(capacity)
        self._mask = np.empty(batch_size * capacity, np.int64)
        self._step_mask = np.empty((batch_size, capacity), np.int64)
        # What is bound for another device than the CPU is copied there at once; what is written later stays behind.
        self._copies = provider != "cpu"
        windows = _windows(self._session, manifest.cache, part)
        cache = KVCache(manifest.cache, cache_dtype(manifest), batch_size, capacity, provider, windows, part)
        if needs_numbers(manifest):
            cache.fill(0)
        return cache

    def _new_binding(self, session: Any, tokens: NDArray[np.int64], logits: Logits, row: int | None = None) -> Any:
        binding = super()._new_binding(session, tokens, logits, row)
        self.cache.bind(binding, row)
        return binding

    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        """What is no token stands behind those of its row, where the next one will take its place."""
        lengths = self.lengths if row is None else self.lengths[row : row + 1]
        total = max(int(lengths.max()), new.shape[1])
        mask = self._mask[: len(lengths) * total].reshape(-1, total)
        np.less(self._slots[:total], lengths[:, None], out=mask, casting="unsafe")
        return nullcontext(mask)


class DynamicDecoder(Decoder):
    """Over a cache that every run makes anew: tokens stand in the order in which they were fed, padding among them."""

    cache: DynamicCache

    def prefill_padded(self, tokens: NDArray[np.int64], mask: Mask) -> Logits:
        """As `prefill_batch`, but with padding anywhere: mask [B, S] says where there are tokens."""
        return self._run_batch(tokens, mask)

    def _bind_step(self) -> None:
        """Tokens and logits are all, and bound already."""

    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Over a mask of what the cache has become."""
        self._tokens[:, 0] = tokens
        new = np.ones_like(self._tokens, np.bool_) if active is None else active[:, None]
        self._run(self._step_session, self._step, new)
        return self._logits[:, 0]

    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, part: str
    ) -> DynamicCache:
        return DynamicCache(manifest.cache, cache_dtype(manifest), batch_size, capacity, provider, part)

    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        return self.cache.grow(binding, new, row)


def _windows(session: Any, geometry: CacheGeometry, part: str) -> list[int | None]:
    """The window of each layer that keeps no more: a number where the graph declares the length of its past."""
    lengths = {value.name: value.shape[2] for value in session.get_inputs() if value.name.endswith(".key")}
    return [length if isinstance(length := lengths.get(key), int) else None for key in past_names(geometry, part)[::2]]


def _bind_input(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
