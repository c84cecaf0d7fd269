"""Prefixes: what a decoder keeps for tokens that were run before, found again by their token ids.

    "You are a …" ──┬── "What is …" ──── "It is …"        a node: tokens, and copies of their keys and values
                    └── "Translate …"                     a path from the root: the beginning of some prompt

A radix tree. Keys and values of a token depend only on the tokens before it, so those of a common beginning are kept
once, and a prompt starts behind the longest beginning that is there: at any token, because a row of the cache is
contiguous, and a block size would only make the match shorter.

What later tokens overwrite, states of fixed size and the buffers of windows, cannot be cut back to fewer tokens. Of
such models a node may hold a snapshot of them at its end, and a prompt can start only there. Snapshots are taken at the
end of a prompt, at the end of an answer, where a prompt leaves what an earlier one had, and behind its last picture or
recording, about which a later one may ask something else (`Prefix.branches`).

The content is copied in and out, so that no row shares memory with another one. Several threads may use one cache.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeformer.errors import RequestError
from edgeformer.runtime.request_values import integer
from edgeformer.runtime.steps.runner import StepRunner

Array = NDArray[Any]
Tensors = Sequence[Array | None]
"""One array for each tensor of a cache; None where it has no part in this."""

SHORTEST = 16
"""Tokens of a prefix at least. Fewer, such as the one that begins every text, take about as long to find as to run."""


@dataclass(frozen=True)
class EndStates:
    """A copy of what cannot be cut back, after the tokens of a node. logits: [V] after the last of them, if known."""

    states: Tensors
    logits: Array | None

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return _bytes([*self.states, self.logits])


@dataclass(eq=False)
class _Node:
    """Tokens int64 [S] behind those of the parent, and their keys and values [K, S, D]."""

    parent: "_Node | None"
    tokens: NDArray[np.int64]
    tensors: Tensors
    snapshot: EndStates | None = None
    children: "dict[int, _Node]" = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size in bytes of all that the node holds."""
        return _bytes([self.tokens, *self.tensors]) + (self.snapshot.bytes if self.snapshot else 0)

    def first(self, count: int) -> Tensors:
        """Return views of the keys and values of the first tokens."""
        return [None if each is None else each[:, :count] for each in self.tensors]


@dataclass(frozen=True)
class Prefix:
    """The beginning of a prompt that a row has already.

    length: its tokens. logits: [V] after them, where it is the whole prompt. branches: numbers of tokens, in ascending
    order, at which a snapshot would serve later prompts.
    """

    length: int = 0
    logits: Array | None = None
    branches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kept:
    """One whole prefix: tokens int64 [T], their keys and values [K, T, D], and the snapshot behind them, if any."""

    tokens: NDArray[np.int64]
    tensors: Tensors
    snapshot: EndStates | None
    kind: str = ""


class PrefixCache:
    """Prefixes of up to `max_bytes` bytes; those that were used least recently go first.

    All are of one model. bytes: those that are taken. Raises RequestError for a negative number of bytes.
    """

    def __init__(self, max_bytes: int):
        if integer("prefix_cache_bytes", max_bytes) < 0:
            raise RequestError(f"prefix_cache_bytes is {max_bytes}; it must be at least 0.")
        self.max_bytes = max_bytes
        self.bytes = 0
        self._lock = RLock()  # one that a thread may take twice
        self._roots: dict[str, _Node] = {}
        # In the order of use, each before its parent: the first one is a leaf, and the one to drop.
        self._nodes: OrderedDict[_Node, None] = OrderedDict()

    def restore(self, decoder: StepRunner, row: int, prompt: Sequence[int], kind: str = "") -> Prefix:
        """Put the longest prefix of a prompt into an empty row.

        At least one token is left to run, unless the logits are known. kind: what else the keys and values depend on
        (`DecodeGraph.kind_of`); prefixes of different kinds have nothing in common.
        """
        with self._lock:
            path, length, snapshot, branches = self._find(decoder, prompt, kind)
            if length < SHORTEST:
                return Prefix(branches=branches)
            self._touch([node for node, _ in path])
            pieces, left = [], length
            for node, count in path:
                pieces.append(node.first(min(count, left)))
                left -= min(count, left)
            decoder.load_row(row, length, pieces, snapshot.states if snapshot else [None] * len(pieces[0]))
            return Prefix(length, snapshot.logits if snapshot and length == len(prompt) else None, branches)

    def known_length(self, decoder: StepRunner, prompt: Sequence[int], kind: str = "") -> int:
        """Return how many tokens of a prompt are kept that a row could start with."""
        with self._lock:
            return self._find(decoder, prompt, kind)[1]

    def _find(
        self, decoder: StepRunner, prompt: Sequence[int], kind: str
    ) -> tuple[list[tuple[_Node, int]], int, EndStates | None, tuple[int, ...]]:
        """Return the path that a prompt begins with, what of it starts a row, its snapshot, and where others branch."""
        tokens = np.asarray(prompt, np.int64)
        path = list(self._matches(tokens, kind))
        matched = sum(count for _, count in path)
        if decoder.cache.trimmable:
            return path, decoder.graph.prefix_end(tokens, min(matched, len(tokens) - 1)), None, ()
        length, snapshot = _last_snapshot(path, len(tokens))
        places = sorted({matched, decoder.graph.media_end(tokens)})
        return path, length, snapshot, tuple(at for at in places if max(length, SHORTEST - 1) < at < len(tokens))

    def keep(
        self, decoder: StepRunner, row: int, tokens: Sequence[int], logits: Array | None = None, kind: str = ""
    ) -> None:
        """Copy what a row holds for its first tokens, as far as it is new and there is room.

        tokens: all that the row holds, or fewer of a cache that can be trimmed; of another one, fewer are not kept.
        logits: [V] after them, if known.
        """
        cache = decoder.cache
        states_are_other = not cache.trimmable and len(tokens) != decoder.lengths[row]
        if len(tokens) < SHORTEST or not self.max_bytes or states_are_other:
            return
        snapshot = None if cache.trimmable else EndStates(cache.read_states(row, len(tokens)), _copy(logits))
        self._insert(
            np.asarray(tokens, np.int64),
            cache.bytes_per_token,
            lambda start, stop: cache.read_tokens(row, start, stop),
            snapshot,
            kind,
        )

    def latest(self) -> Kept | None:
        """Return the prefix that was used last; None for an empty cache. Its arrays are copies."""
        with self._lock:
            for node in reversed(self._nodes):
                if not node.children:
                    path = _ancestry(node)
                    while path and not (path[-1].snapshot or all(each is not None for each in path[-1].tensors)):
                        path.pop()
                    if path:
                        return _joined(path, next(name for name, root in self._roots.items() if root is path[0].parent))
            return None

    def insert(self, kept: Kept) -> None:
        """Add what `latest` returned, as far as there is room."""
        per_token = _bytes(kept.tensors) // len(kept.tokens)
        self._insert(
            kept.tokens,
            per_token,
            lambda start, stop: [None if each is None else each[:, start:stop].copy() for each in kept.tensors],
            kept.snapshot,
            kept.kind,
        )

    def _insert(
        self,
        wanted: NDArray[np.int64],
        per_token: int,
        read: Callable[[int, int], Tensors],
        snapshot: EndStates | None,
        kind: str = "",
    ) -> None:
        """Add a path. per_token: bytes of each token's tensors. read: returns those of a range of the tokens."""
        with self._lock:
            path = list(self._matches(wanted, kind))
            known = sum(count for _, count in path)
            self._touch([node for node, _ in path])
            if len(wanted) == known and snapshot is None:
                return
            end = self._cut(path) if path else self._root(kind)  # behind it, the last node of the path may be dropped
            per_token += wanted.itemsize
            needed = (len(wanted) - known) * per_token + (snapshot.bytes if snapshot else 0)
            free = self._make_room(needed, {end, *(node for node, _ in path[:-1])})
            if free < needed:
                if snapshot:
                    return
                wanted = wanted[: known + max(free, 0) // per_token]
            if len(wanted) > known:
                end = self._add(_Node(end, wanted[known:].copy(), read(known, len(wanted))))
            if snapshot and (end.snapshot is None or end.snapshot.logits is None):
                self.bytes += snapshot.bytes - (end.snapshot.bytes if end.snapshot else 0)
                end.snapshot = snapshot
            self._touch(_ancestry(end))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._roots, self.bytes = {}, 0
            self._nodes.clear()

    def _root(self, kind: str) -> _Node:
        return self._roots.setdefault(kind, _Node(None, np.empty(0, np.int64), []))

    def _matches(self, tokens: NDArray[np.int64], kind: str) -> Iterator[tuple[_Node, int]]:
        """Yield the nodes that a text begins with, each with how many of its tokens it has."""
        node, place = self._roots.get(kind), 0
        while node is not None and place < len(tokens):
            node = node.children.get(int(tokens[place]))
            if node is not None:
                text = tokens[place : place + len(node.tokens)]
                differ = np.flatnonzero(text != node.tokens[: len(text)])
                count = int(differ[0]) if len(differ) else len(text)
                yield node, count
                place += count
                if count < len(node.tokens):
                    return

    def _touch(self, path: Sequence[_Node]) -> None:
        """Mark a path as used last, each node before its parent."""
        for node in reversed(path):
            self._nodes.move_to_end(node)

    def _make_room(self, needed: int, used: set[_Node]) -> int:
        """Drop what was used least recently, but not `used`, until `needed` bytes are free; return how many are."""
        while self._nodes and self.max_bytes - self.bytes < needed:
            leaf = next(iter(self._nodes))
            if leaf in used:
                break
            del self._nodes[leaf]
            self.bytes -= leaf.bytes
            assert leaf.parent is not None and not leaf.children
            del leaf.parent.children[int(leaf.tokens[0])]
        return self.max_bytes - self.bytes

    def _add(self, node: _Node) -> _Node:
        assert node.parent is not None
        node.parent.children[int(node.tokens[0])] = node
        self._nodes[node] = None
        self.bytes += node.bytes
        return node

    def _cut(self, path: Sequence[tuple[_Node, int]]) -> _Node:
        """Return the node that ends where a path does; divide the last node of the path if it is longer."""
        node, count = path[-1]
        if count == len(node.tokens):
            return node
        parent = node.parent
        assert parent is not None
        head = _Node(parent, node.tokens[:count].copy(), [_copy(each) for each in node.first(count)])
        parent.children[int(head.tokens[0])] = head
        node.parent, node.tokens = head, node.tokens[count:].copy()
        node.tensors = [None if each is None else each[:, count:].copy() for each in node.tensors]
        head.children[int(node.tokens[0])] = node
        self._nodes[head] = None
        return head


def _last_snapshot(path: Sequence[tuple[_Node, int]], tokens: int) -> tuple[int, EndStates | None]:
    """Return the last place at which a prompt of so many tokens can start, and the snapshot there; 0 for none."""
    place = 0
    found: tuple[int, EndStates | None] = (0, None)
    for node, count in path:
        place += count
        snapshot = node.snapshot
        if snapshot and count == len(node.tokens) and (place < tokens or snapshot.logits is not None):
            found = place, snapshot
    return found


def _joined(path: Sequence[_Node], kind: str) -> Kept:
    """Return all that the nodes of a path hold."""
    tensors = []
    for parts in zip(*(node.tensors for node in path), strict=True):
        arrays = [part for part in parts if part is not None]
        tensors.append(np.concatenate(arrays, axis=1) if arrays else None)
    return Kept(np.concatenate([node.tokens for node in path]), tensors, path[-1].snapshot, kind)


def _ancestry(node: _Node) -> list[_Node]:
    """Return the path to a node, without the root."""
    path = []
    each: _Node | None = node
    while each is not None and each.parent is not None:
        path.append(each)
        each = each.parent
    return path[::-1]


def _bytes(arrays: Tensors) -> int:
    return sum(each.nbytes for each in arrays if each is not None)


def _copy(array: Array | None) -> Array | None:
    return None if array is None else array.copy()
