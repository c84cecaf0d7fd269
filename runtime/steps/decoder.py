"""Run a decoder graph over a cache of its form: `prefill` for one row, `decode_one_token` for all rows.

static    past and present are one buffer, bound once; a step writes the new tokens and the mask in place and runs
dynamic   every run returns a present, which is the past of the next run
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import LOGITS_START
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provider
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.caches.encoder_outputs import CrossCache
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions.buffer import Rows

PREFILL_CHUNK = 256
"""Tokens of a prompt per run on the CPU. Attention kernels also compute the masked half of a prompt; in chunks, only
the masked half of each chunk is wasted."""


LAST = np.array([-1], np.int64)
"""The `logits_start` of a run that returns the logits of its last token alone."""

Tokens = Sequence[int] | NDArray[np.int64]
Mask = NDArray[np.bool_]
Logits = NDArray[Any]
"""float32 from edgeformer's own graphs; other graphs may return the precision that they compute in."""


@dataclass(frozen=True)
class PrefillSession:
    """A session of the prefill graph: over the same cache, and faster for runs of `from_tokens` tokens or more.

    The tokens of all rows count together. The graph returns the logits of the last token only: [B, 1, V].
    """

    session: Any
    from_tokens: int


class Candidates(NamedTuple):
    """The most likely tokens of a row, and all that are as likely as the last of them.

    ids: int64 [n], in ascending order; logits: [n].
    """

    ids: NDArray[np.int64]
    logits: Logits


@dataclass(frozen=True)
class Snapshot:
    """A moment of a decoder. lengths: int64 [B], tokens in each row; states: of its cache."""

    lengths: NDArray[np.int64]
    states: Any


def returns_last_logits(session: Any) -> bool:
    """Return whether runs of a session may return the logits of their last token alone: it has the optional input."""
    return any(each.name == LOGITS_START for each in session.get_overridable_initializers())


class Decoder(ABC):
    """The state of one request: the cache of its rows, their lengths, and the binding of its decode steps.

    lengths: int64 [B], tokens in each row.
    """

    cache: StaticCache | DynamicCache
    prefill_chunk = PREFILL_CHUNK

    def __init__(
        self,
        session: Any,
        manifest: Manifest,
        batch_size: int,
        capacity: int,
        provider: Provider = "cpu",
        encoder_outputs: CrossCache | None = None,
        prefill: PrefillSession | None = None,
    ):
        self._session = session
        self._prefill = prefill
        self._encoder_outputs = encoder_outputs
        self._mask_name = "attention_mask" if encoder_outputs is None else "decoder_attention_mask"
        self._vocab_size = manifest.vocab_size
        self._has_start = returns_last_logits(session)
        logits = next(output for output in session.get_outputs() if output.name == "logits")
        self._logits_dtype = np.float16 if logits.type == "tensor(float16)" else np.float32
        prefix = "" if encoder_outputs is None else "decoder."
        self.cache = self._new_cache(manifest, batch_size, capacity, provider, prefix)
        self.lengths = np.zeros(batch_size, np.int64)
        # All decode steps share one binding, whose arrays are filled in place.
        self._tokens = np.zeros((batch_size, 1), np.int64)
        self._logits = np.empty((batch_size, 1, self._vocab_size), self._logits_dtype)
        self._step_session = self._session_for(batch_size)
        self._step = self._new_binding(self._step_session, self._tokens, self._logits)
        self._bind_step()

    def prefill(self, row: int, tokens: Tokens, *, chunk: int | None = None) -> Logits:
        """Append a prompt to one row, `chunk` tokens at a time; return the logits of its last token [V].

        chunk: None for `prefill_chunk`.
        """
        chunk = chunk or self.prefill_chunk
        buffer = self._new_logits(0)
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            session = self._session_for(len(piece))
            rows = 1 if self._gives_last(session) else len(piece)
            if len(buffer) < rows:
                buffer = self._new_logits(rows)
            self._run_row(session, row, piece, buffer[:rows])
        return buffer[rows - 1]

    def prefill_all(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """Append a prompt to one row as `prefill` does; return the logits of every token [S, V]."""
        logits = self._new_logits(len(tokens))
        for start in range(0, len(tokens), chunk):
            self._run_row(self._session, row, tokens[start : start + chunk], logits[start : start + chunk])
        return logits

    def decode_tokens(self, row: int, tokens: Tokens) -> Logits:
        """Append several tokens to one row in one run of the decode graph; return the logits after each [S, V].

        The next run of as many tokens overwrites them.
        """
        return self.prefill_all(row, tokens, chunk=len(tokens))

    def can_cut(self, length: int) -> bool:
        """Return whether `cut` may take tokens back from a row that has this many; `restore` always can."""
        return False

    def cut(self, row: int, length: int) -> None:
        """Take back the tokens of a row behind the first `length`, from a row that `can_cut` has allowed."""
        self.lengths[row] = length

    def _session_for(self, tokens: int) -> Any:
        """Return the faster session for a run of this many tokens whose last logits are all that is needed."""
        prefill = self._prefill
        return self._session if prefill is None or tokens < prefill.from_tokens else prefill.session

    def _gives_last(self, session: Any) -> bool:
        """Return whether a run of a session can return the logits of its last token alone."""
        return self._shortens(session) or (self._prefill is not None and session is self._prefill.session)

    def _shortens(self, session: Any) -> bool:
        """Return whether a session has the optional input for that."""
        return self._has_start and session is self._session

    def _new_logits(self, tokens: int) -> Logits:
        """Return an array for the logits of a prompt's tokens [S, V]."""
        return np.empty((tokens, self._vocab_size), self._logits_dtype)

    def _run_row(self, session: Any, row: int, tokens: Tokens, logits: Logits) -> None:
        """Run one row by itself, so that its result does not depend on the other rows."""
        ids = np.asarray(tokens, np.int64)[None]
        self._run(session, self._new_binding(session, ids, logits[None], row), np.ones(ids.shape, np.bool_), row)

    def prefill_batch(self, tokens: NDArray[np.int64], lengths: Tokens) -> Logits:
        """Append right-padded prompts [B, S] of lengths [B] to empty rows in one run; return logits [B, S, V].

        Raises RequestError for rows that have tokens: onnxruntime's GroupQueryAttention takes several tokens behind a
        past of one row only.
        """
        return self._run_batch(tokens, np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None])

    def _run_batch(self, tokens: NDArray[np.int64], new: Mask) -> Logits:
        """Append padded prompts [B, S] to empty rows in one run; new: bool [B, S], False at padding."""
        if self.lengths.any():
            raise RequestError(
                f"the rows have {', '.join(map(str, self.lengths))} tokens, and a batch of {tokens.shape[1]} tokens a "
                "row goes into empty rows only. Append them row by row (prefill), or one token to each row "
                "(decode_one_token)."
            )
        self._check_room(tokens.shape[1])
        tokens = np.ascontiguousarray(tokens)
        logits = np.empty((*tokens.shape, self._vocab_size), self._logits_dtype)
        self._run(self._session, self._new_binding(self._session, tokens, logits), new)
        return logits

    def decode_candidates(self, tokens: Tokens, active: Mask | None, count: int) -> list[Candidates] | None:
        """Append tokens as `decode_one_token` does; return the `count` most likely next tokens of each row.

        Returns None, and appends nothing, where `decode_one_token` is as fast: its logits are at hand on the CPU.
        """
        return None

    @abstractmethod
    def decode_one_token(self, tokens: Tokens, active: Mask | None = None) -> Logits:
        """Append one token to every active row; return logits [B, V], which the next step overwrites.

        tokens: [B]. active: bool [B], None for all rows. A row that is not active is finished: its length stays, and
        its logits mean nothing.
        """

    def keep_rows(self, rows: Sequence[int]) -> list[int] | None:
        """Go on with these rows alone, as rows 0 to n - 1; return which of them each has become, None if it cannot.

        rows: in ascending order. Rows among the first n stay where they are, and the others take the places of rows
        that are left out.
        """
        return None

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Replace every row r by a copy of row parents[r] of the same source; return the bytes copied."""
        copied = self.cache.reorder(parents, int(self.lengths.max()))
        self.lengths = self.lengths[parents]
        return copied

    def snapshot(self) -> Snapshot:
        """Return what `restore` needs to take back the tokens that are appended from now on.

        A layer with a state of fixed size cannot forget its last tokens, so the state is copied before tokens that may
        be taken back, such as guesses of a speculative decoder.
        """
        return Snapshot(self.lengths.copy(), self.cache.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Take back all tokens after a snapshot of this decoder; it can be restored again later."""
        self.lengths[:] = snapshot.lengths
        self.cache.restore(snapshot.states)

    def load_row(
        self, row: int, length: int, pieces: Sequence[Sequence[Any]], states: Sequence[NDArray[Any] | None]
    ) -> None:
        """Replace a row by `length` tokens that were read from a cache of this kind; see `write_row` of the caches."""
        self.cache.write_row(row, pieces, states)
        self.lengths[row] = length

    @abstractmethod
    def _new_cache(
        self, manifest: Manifest, batch_size: int, capacity: int, provider: Provider, prefix: str
    ) -> StaticCache | DynamicCache:
        """Return an empty cache; prefix: the beginning of its tensors' names in the graph."""

    def _new_binding(self, session: Any, tokens: NDArray[np.int64], logits: Logits | None, rows: Rows = None) -> Any:
        """Return a binding of tokens, logits and encoder outputs, for all rows or some.

        logits: of all tokens, or of the last one where the session can return those alone; None where the caller binds
        them, of the last one if possible.
        """
        binding = session.io_binding()
        bind_input(binding, "input_ids", tokens)
        if logits is not None:
            bind_output(binding, "logits", logits)
        if self._shortens(session) and (logits is None or logits.shape[1] < tokens.shape[1]):
            bind_input(binding, LOGITS_START, LAST)
        if self._encoder_outputs is not None:
            self._encoder_outputs.bind(binding, rows)
        return binding

    def _run(self, session: Any, binding: Any, new: Mask, row: int | None = None) -> None:
        """Run a binding for all rows or one (R rows); new: bool [R, S], False at padding."""
        rows = slice(None) if row is None else slice(row, row + 1)
        lengths = self.lengths[rows] + new.sum(1)
        self._check_room(int(lengths.max()))
        self.lengths[rows] = lengths
        with self._over_cache(binding, new, row) as mask:
            bind_input(binding, self._mask_name, mask)
            session.run_with_iobinding(binding)

    @abstractmethod
    def _bind_step(self) -> None:
        """Bind what does not change between decode steps."""

    @abstractmethod
    def _over_cache(self, binding: Any, new: Mask, row: int | None) -> AbstractContextManager[NDArray[np.int64]]:
        """Bind what changes between runs; return a context for the run that yields its attention mask [R, T]."""

    def _check_room(self, length: int) -> None:
        if length > self.cache.capacity:
            raise ValueError(f"{length} tokens do not fit a cache of {self.cache.capacity}")


def bind_input(binding: Any, name: str, array: NDArray[Any]) -> None:
    """Bind an array as an input of a graph; it must stay where it is until the graph has run."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: NDArray[Any]) -> None:
    """Bind an array as an output of a graph; it must stay where it is until the graph has run."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
