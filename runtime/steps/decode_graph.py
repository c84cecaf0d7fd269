"""A decoder graph and what its runs read besides tokens and cache: sources and adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.contract.tensors import LOGITS_START, REQUEST_LENGTH, CacheGeometry
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime.caches.encoder_outputs import EncoderOutputs
from edgeformer.runtime.sessions.buffer import Rows
from edgeformer.runtime.sessions.graphs.optional_inputs import has_optional_input
from edgeformer.runtime.steps import picture_blocks
from edgeformer.runtime.steps.picture_rows import PictureRows
from edgeformer.runtime.steps.row_adapters import RowAdapters

LAST = np.array([-1], np.int64)
"""The `logits_start` of a run that returns the logits of its last token alone."""

ALL = np.array([0], np.int64)
"""The `logits_start` of a run that returns the logits of all its tokens."""

Tokens = Sequence[int] | NDArray[np.int64]
Logits = NDArray[Any]
"""float32 from edgeformer's own graphs; other graphs may return the precision that they compute in."""


LONG = "/long"
"""Behind the name of an adapter, of requests whose positions turn by the factors of long ones. No name has a slash."""


def returns_last_logits(session: Any) -> bool:
    """Return whether runs of a session may return the logits of their last token alone: it has the optional input."""
    return has_optional_input(session, LOGITS_START)


@dataclass(frozen=True)
class TokenStates:
    """States of the tokens of rows, by their places in them, which runs read or write.

    name: of the graph's input or output [R, S, size]. rows: float32 [C, size] for each row of the cache, None for one
    whose states nobody keeps.
    """

    name: str
    rows: list[NDArray[np.float32] | None]
    size: int
    is_input: bool = False


class BoundStates:
    """Arrays for the states of a run [R, S, size], which a binding keeps; runs copy them from and to their rows.

    Binding other addresses takes 13 µs a run where weights have evicted that code, and copies take 1 µs (tiny-llama).
    """

    def __init__(self, binding: Any, states: Sequence[TokenStates], rows: int, tokens: int):
        self._tokens = tokens
        self._inputs: list[tuple[TokenStates, NDArray[np.float32]]] = []
        self._outputs: list[tuple[TokenStates, NDArray[np.float32]]] = []
        for each in states:
            bound = np.empty((rows, tokens, each.size), np.float32)
            (bind_input if each.is_input else bind_output)(binding, each.name, bound)
            (self._inputs if each.is_input else self._outputs).append((each, bound))

    def load(self, first: int, lengths: Tokens) -> None:
        """Copy what the run reads. first: its first row. lengths: of its rows, before the run."""
        for states, bound in self._inputs:
            for row, begin in enumerate(lengths):
                array = states.rows[first + row]
                assert array is not None, "a run reads the states of rows that have them"
                bound[row] = array[begin : begin + self._tokens]

    def store(self, first: int, lengths: Tokens) -> None:
        """Copy what the run wrote, where its row keeps it; what padding wrote beyond the end of a row is left out."""
        for states, bound in self._outputs:
            for row, begin in enumerate(lengths):
                array = states.rows[first + row]
                if array is not None:
                    kept = array[begin : begin + self._tokens]
                    kept[:] = bound[row, : len(kept)]


class DecodeGraph:
    """A session of a decoder graph, and the sessions that take its place for rows with adapters.

    - sources: keys and values of the rows' sources, of an encoder-decoder.
    - adapters: those of the rows; rows with one run over the adapter graph.
    - pictures: those of the rows' prompts; pieces of prompts with some run over the graph that reads embeddings.
    - has_team: whether kernels of our own, on their threads, compute all that is heavy.
    - appends_to_rows: whether its attention takes several new tokens behind pasts of several rows, as our kernels do.
    - has_blocks: whether these have tokens that attend both ways (`picture_blocks`).
    - request_lengths: int64 [B], the most tokens that each row will have, where the graph reads them; else None.
    - token_states: those that runs read or write.
    - cache: what its layers keep; None for what the manifest says of the model's.
    - vocab_size: logits of a token; a head that drafts may have fewer than the model.
    """

    def __init__(
        self,
        session: Any,
        manifest: Manifest,
        sources: EncoderOutputs | None = None,
        adapters: RowAdapters | None = None,
        cache: CacheGeometry | None = None,
    ):
        self.session = session
        self.manifest = manifest
        self.sources = sources
        self.adapters = adapters
        self.mask_name = "attention_mask" if sources is None else "decoder_attention_mask"
        self.cache_prefix = "" if sources is None else "decoder."
        logits = next(output for output in session.get_outputs() if output.name == "logits")
        self.logits_dtype = np.dtype(np.float16 if logits.type == "tensor(float16)" else np.float32)
        width = logits.shape[-1]
        self.vocab_size = width if isinstance(width, int) else manifest.vocab_size
        self.has_start = returns_last_logits(session)
        self.has_team = getattr(session, "has_team", False)  # of a plain session of onnxruntime it is not known
        self.appends_to_rows = False  # who runs several rows says so
        self.cache = cache or manifest.cache
        self.token_states: tuple[TokenStates, ...] = ()
        self.pictures: PictureRows | None = None
        self.has_blocks = picture_blocks.has_blocks(manifest)
        self.request_lengths: NDArray[np.int64] | None = None
        if has_optional_input(session, REQUEST_LENGTH):
            self.request_lengths = np.empty(0, np.int64)

    def begin_rows(self, rows: int, length: int) -> None:
        """Take account of that many rows, each of up to `length` tokens until `StepRunner.expect` says otherwise."""
        if self.request_lengths is not None:
            self.request_lengths = np.full(rows, length)

    def kind_of(self, adapter: str | None, request_length: int) -> str:
        """Return what the keys and values of a request depend on beside its tokens: adapter and factors of rotation."""
        short = self.manifest.short_context
        is_long = self.request_lengths is not None and short is not None and request_length > short
        return (adapter or "") + (LONG if is_long else "")

    def piece_end(self, tokens: Tokens, start: int, chunk: int) -> int:
        """Return where the piece of a prompt ends that begins at `start`: behind `chunk` tokens, or by its blocks."""
        if self.has_blocks:
            return picture_blocks.piece_end(tokens, start, chunk, self.manifest.vocab_size)
        return min(start + chunk, len(tokens))

    def prefix_end(self, tokens: Tokens, length: int) -> int:
        """Return the most tokens of a prompt, up to `length`, that a row can begin with: no block is divided."""
        return picture_blocks.prefix_end(tokens, length, self.manifest.vocab_size) if self.has_blocks else length

    def media_end(self, tokens: Tokens) -> int:
        """Return the tokens of a prompt up to the end of its last picture or recording; 0 where it has none."""
        states = np.flatnonzero(np.asarray(tokens) >= self.manifest.vocab_size)
        return int(states[-1]) + 1 if len(states) else 0

    def inputs_of(self, session: Any, tokens: Tokens) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Return the session that reads tokens of one row, another one for pictures, and its inputs by name.

        The first is [1, S, …].
        """
        ids = np.asarray(tokens, np.int64)
        if self.pictures is None or not self.pictures.read(ids):
            return session, {"input_ids": ids[None]}
        return self.pictures.graphs.reader, self.pictures.inputs(ids)

    def session_of(self, row: int) -> Any:
        """Return the session for a run of one row."""
        adapted = None if self.adapters is None else self.adapters.session_of(row)
        return self.session if adapted is None else adapted

    def session_of_rows(self, rows: range) -> Any:
        """Return the session for a step of adjacent rows."""
        adapted = None if self.adapters is None else self.adapters.session_of_rows(rows)
        return self.session if adapted is None else adapted

    def adapts(self, rows: range) -> bool:
        """Return whether any of some adjacent rows has an adapter."""
        return self.adapters is not None and self.adapters.any_of(rows)

    def takes_start(self, session: Any) -> bool:
        """Return whether a session has the optional input by which runs return the logits of the last token alone."""
        return self.has_start if session is self.session else returns_last_logits(session)

    def bound_states(self, binding: Any, rows: int, tokens: int) -> BoundStates | None:
        """Return arrays for the states of so many tokens, which are bound from now on; None for a graph without."""
        return BoundStates(binding, self.token_states, rows, tokens) if self.token_states else None

    def keep_states(self, row: int, array: NDArray[np.float32] | None) -> None:
        """Keep the states of a row's tokens in an array from now on; None for nowhere."""
        for states in self.token_states:
            states.rows[row] = array

    def new_logits(self, *tokens: int) -> Logits:
        """Return an array for the logits of so many tokens [..., V]."""
        return np.empty((*tokens, self.vocab_size), self.logits_dtype)

    def new_binding(
        self, session: Any, ids: NDArray[Any], logits: Logits | None, rows: Rows, name: str = "input_ids"
    ) -> Any:
        """Return a binding of tokens [R, S], logits and sources, for all rows or some.

        name: of the input, `inputs_embeds` for embeddings [R, S, E].
        logits: of all tokens, or of the last one where the session can return those alone; None where the caller binds
        them, of the last one if possible.
        """
        binding = session.io_binding()
        bind_input(binding, name, ids)
        if logits is not None:
            bind_output(binding, "logits", logits)
        if self.takes_start(session) and (logits is None or logits.shape[1] < ids.shape[1]):
            bind_input(binding, LOGITS_START, LAST)
        if self.request_lengths is not None:
            bind_input(binding, REQUEST_LENGTH, self.request_lengths[of_rows(rows)])
        if self.sources is not None:
            self.sources.bind(binding, rows)
        return binding


def of_rows(rows: Rows) -> slice:
    """Return the slice of an array that has an entry for each row."""
    if isinstance(rows, int):
        return slice(rows, rows + 1)
    return slice(None) if rows is None else slice(rows.start, rows.stop)


def bind_input(binding: Any, name: str, array: NDArray[Any]) -> None:
    """Bind an array as an input of a graph; it must stay where it is until the graph has run."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: NDArray[Any]) -> None:
    """Bind an array as an output of a graph; it must stay where it is until the graph has run."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
