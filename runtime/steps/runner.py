"""Runs of a decoder graph over a cache: prompts of one row, and steps of adjacent rows.

    row 0   │ tokens … │
    row 1   │ tokens ……… │   ◄── decode_rows(1, [a, b])     one token each  ──►  logits [2, V], or candidates
    row 2   │ tokens │
    row 3   │ │              ◄── prefill(3, prompt)         in chunks       ──►  logits after the last token [V]
    row 4   │ tokens … │     ◄── decode_tokens(4, [t, d₁, d₂])  one run     ──►  logits after each [3, V]
    rows 5… │ tokens … │     ◄── decode_together(5, [n, S])      with our kernels  ──►  [n, S, V]

    StepRunner ─── DecodeGraph   sessions: of the graph, for prompts, with adapters; sources of an encoder-decoder
               ├── Cache         static or dynamic: what rows keep between runs
               └── StepMemory    token ids, mask and logits: on the host, or on a device with captured steps

A row is run by itself or beside others, and its result does not depend on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.caches.cache import Cache, Content
from edgeformer.runtime.steps.decode_graph import Logits, Tokens, of_rows
from edgeformer.runtime.steps.memory import ONE, PREFILL_CHUNK, Candidates, HostSteps, Mask, StepMemory


@dataclass(frozen=True)
class Snapshot:
    """A moment of a row: its length, and the states of its cache."""

    length: int
    states: Any


class StepRunner:
    """Rows of a cache, each with a length of its own, and the runs that append to them.

    lengths: int64 [B], tokens in each row. prefill_chunk: tokens of a prompt in one run that other rows
    wait for.
    """

    def __init__(self, cache: Cache, memory: StepMemory):
        self.cache = cache
        self.memory = memory
        self.graph = memory.graph
        self.chooses_candidates = memory.chooses_candidates
        self.prefill_chunk = memory.prefill_chunk
        self.lengths = np.zeros(cache.batch_size, np.int64)
        self._written = np.zeros(cache.batch_size, np.int64)

    def prefill(self, row: int, tokens: Tokens, *, chunk: int | None = None) -> Logits:
        """Append a prompt to one row, `chunk` tokens at a time; return the logits of its last token [V].

        The next prompt may overwrite them. chunk: None for the memory's `prompt_chunk`. A block is a piece of its own,
        whatever its length.
        """
        for piece in self._pieces(tokens, chunk or self.memory.prompt_chunk):
            logits = self.memory.run_prompt(row, piece, self._length_behind(row, piece))
            self.lengths[row] += len(piece)
        return logits

    def prefill_all(self, row: int, tokens: Tokens, *, chunk: int = PREFILL_CHUNK) -> Logits:
        """Append a prompt to one row as `prefill` does; return the logits of each token [S, V]."""
        found = []
        for piece in self._pieces(tokens, chunk):
            found.append(self.memory.run_all(row, piece, self._length_behind(row, piece)))
            self.lengths[row] += len(piece)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _pieces(self, tokens: Tokens, chunk: int) -> Iterator[Tokens]:
        """Yield the pieces of a prompt that are run one after the other."""
        chunk, start = min(chunk, self.memory.most_tokens or chunk), 0
        while start < len(tokens):
            end = self.graph.piece_end(tokens, start, chunk)
            yield tokens[start:end]
            start = end

    def decode_tokens(self, row: int, tokens: Tokens) -> Logits:
        """Append several tokens to one row in one run of the decode graph; return the logits after each [S, V].

        The next run of several tokens overwrites them.
        """
        if self.memory.most_tokens is not None and len(tokens) > self.memory.most_tokens:
            return self.prefill_all(row, tokens)
        logits = self.memory.run_tokens(row, tokens, self._length_behind(row, tokens))
        self.lengths[row] += len(tokens)
        return logits

    def decode_last(self, row: int, tokens: Tokens) -> Logits:
        """Append several tokens to one row as `decode_tokens` does; return the logits after the last one [V]."""
        if self.memory.most_tokens is not None and len(tokens) > self.memory.most_tokens:
            return self.prefill(row, tokens)
        logits = self.memory.run_tokens(row, tokens, self._length_behind(row, tokens), last_only=True)
        self.lengths[row] += len(tokens)
        return logits[-1]

    def prefill_batch(self, tokens: NDArray[np.int64], lengths: Tokens) -> Logits:
        """Append right-padded prompts [B, S] of lengths [B] to empty rows in one run; return logits [B, S, V].

        Raises RequestError for rows that have tokens: onnxruntime's GroupQueryAttention takes several tokens behind a
        past of one row only.
        """
        return self.prefill_padded(tokens, np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None])

    def prefill_padded(self, tokens: NDArray[np.int64], mask: Mask) -> Logits:
        """Append prompts [B, S] to empty rows as `prefill_batch` does. mask: bool [B, S], False at padding.

        Padding in front of tokens takes a dynamic cache.
        """
        if self.lengths.any():
            raise RequestError(
                f"the rows have {', '.join(map(str, self.lengths))} tokens, and a batch of {tokens.shape[1]} tokens a "
                "row goes into empty rows only. Append them row by row (prefill), or one token to each row "
                "(decode_one_token)."
            )
        self._check_room(tokens.shape[1])
        lengths = mask.sum(1)
        logits = self.memory.run_batch(tokens, mask, lengths)
        self.lengths[:] = lengths
        return logits

    def decode_one_token(self, tokens: Tokens) -> Logits:
        """Append one token to every row; return logits [B, V], which the next step overwrites."""
        logits = self.decode_rows(0, tokens)
        assert not isinstance(logits, list)
        return logits

    def decode_rows(
        self, first: int, tokens: Tokens, candidates: int | None = None, active: Mask | None = None
    ) -> Logits | list[Candidates]:
        """Append one token to each of n rows from `first` on; return logits [n, V], which the next step overwrites.

        candidates: how many of the most likely tokens are enough; they are returned where `chooses_candidates`. active:
        bool [n], None for all. A row that is not active has ended: its length stays, and its logits mean nothing.
        """
        lengths = self.lengths[first : first + len(tokens)]
        longest = max(lengths.tolist()) + 1  # the array's own maximum takes longer
        if longest > self.cache.capacity:
            self._check_room(longest)
        logits = self.memory.step(first, tokens, self.lengths, longest, active, candidates)
        if active is not None:
            lengths += active
        elif len(lengths) == 1:
            lengths[0] = longest  # numpy takes 1 µs to add to a single number, and 0.3 µs to several
        else:
            lengths += ONE
        return logits

    def decode_together(self, first: int, tokens: NDArray[np.int64]) -> Logits:
        """Append several tokens [n, S] to each of n rows from `first` on, in one run; return logits [n, S, V].

        The next run of several rows overwrites them. It takes a graph that `appends_to_rows`.
        """
        assert isinstance(self.memory, HostSteps) and self.graph.appends_to_rows, "our kernels run on the CPU"
        lengths = self.lengths[first : first + len(tokens)]
        self._check_room(int(lengths.max()) + tokens.shape[1])
        logits = self.memory.run_rows(first, tokens, self.lengths)
        lengths += tokens.shape[1]
        return logits

    def can_cut(self, length: int) -> bool:
        """Return whether `cut` may take tokens back from a row that has this many; `restore` always can."""
        return length <= self.cache.reversible_length

    def cut(self, row: int, length: int) -> None:
        """Take back the tokens of a row behind the first `length`, from a row that `can_cut` has allowed."""
        self.written(row)
        self.lengths[row] = length

    def snapshot(self, row: int = 0) -> Snapshot:
        """Return what `restore` needs to take back the tokens that are appended to a row from now on.

        A layer with a state of fixed size cannot forget its last tokens, so the state is copied before tokens that may
        be taken back, such as drafts.
        """
        return Snapshot(int(self.lengths[row]), self.cache.snapshot(row))

    def restore(self, snapshot: Snapshot, row: int = 0) -> None:
        """Take back all tokens of a row after a snapshot of it; it can be restored again later."""
        self.lengths[row] = snapshot.length
        self.cache.restore(snapshot.states, row)

    def take(self, row: int) -> None:
        """Make a row empty."""
        self.cut(row, 0)
        self.cache.clear_row(row)

    def expect(self, length: int, row: int | None = None, prompt: int = 0) -> None:
        """Take account of the most tokens that an empty row will have, or all rows; by default the capacity.

        Where rotary embeddings have other factors for long requests, these follow from it. prompt: tokens of a row that
        it will have for certain.
        """
        if self.graph.request_lengths is not None:
            self.graph.request_lengths[of_rows(row)] = length
        if row is not None:
            self.cache.expect(row, prompt)

    def move(self, source: int, target: int) -> None:
        """Replace a row, its source and its adapter by copies of another row's; its states are then kept there."""
        self.cut(target, 0)
        if self.graph.request_lengths is not None:
            self.graph.request_lengths[target] = self.graph.request_lengths[source]
        self.copy(source, target, int(self.lengths[source]))
        if self.graph.adapters is not None:
            self.graph.adapters.set(target, self.graph.adapters.names[source])
        if self.graph.sources is not None:
            self.graph.sources.move(source, target)
        for states in self.graph.token_states:
            states.rows[target] = states.rows[source]

    def copy(self, source: int, target: int, length: int) -> None:
        """Begin a row with the first tokens of another one; fewer than all of them, if the cache can be cut to them."""
        self.cache.move_row(source, target, length)
        self.lengths[target] = length

    def reorder(self, parents: NDArray[np.int64]) -> int:
        """Replace every row r by a copy of row parents[r] of the same source; return the bytes copied."""
        copied = self.cache.reorder(parents, int(self.lengths.max()))
        self.lengths[:] = self.lengths[parents]
        return copied

    def release(self, row: int) -> None:
        """Give the memory of a row back; it has no tokens then."""
        self.lengths[row] = self._written[row] = 0
        self.cache.release_row(row)
        self.graph.keep_states(row, None)

    def written(self, row: int) -> int:
        """Return the most tokens that a row has had since `release`: its memory is that of so many."""
        self._written[row] = max(self._written[row], self.lengths[row])
        return int(self._written[row])

    def load_row(self, row: int, length: int, pieces: Sequence[Content], states: Content) -> None:
        """Replace a row by `length` tokens that were read from a cache of this kind; see `Cache.write_row`."""
        self.cache.expect(row, length)
        self.cache.write_row(row, pieces, states)
        self.lengths[row] = length

    def _length_behind(self, row: int, tokens: Tokens) -> int:
        length = int(self.lengths[row]) + len(tokens)
        self._check_room(length)
        return length

    def _check_room(self, length: int) -> None:
        if length > self.cache.capacity:
            raise ValueError(f"{length} tokens do not fit a cache of {self.cache.capacity}")
