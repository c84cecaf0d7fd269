"""Match the nodes of one graph with those of another.

Matching has three steps: first nodes that compute the same from the same inputs (everything above a change, and beside
it); then, in order, nodes that look the same including the ops right above them (everything below the change); then
nodes that moved. So a change does not affect the nodes after it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

from graph_viewer.nodes import SHOWN_DIGITS, node_text
from graph_viewer.structure import Source, Structure, Vertex

PRIME = "′"
"""Mark of a value of the second graph that differs from the first graph's value of the same name."""


class Match:
    """The matched nodes of two graphs. ours: number in `first` → number in `second`. theirs: the inverse."""

    def __init__(self, first: Structure, second: Structure):
        self.first, self.second = first, second
        self.ours: dict[int, int] = {}
        self.theirs: dict[int, int] = {}
        self._match_digests()
        self._match_signatures()
        self._match_moved()

    def same(self, ours: Source, theirs: Source) -> bool:
        """Return whether two values are the same.

        Two values of unmatched nodes with the same op count as the same: both nodes are differences themselves.
        """
        if ours.digest == theirs.digest:
            return True
        if ours.node is None or theirs.node is None:
            # Two weights of one name are compared as weights.
            return ours.node is theirs.node and ours.label == theirs.label
        if self.both_alone(ours, theirs):
            return ours.label == theirs.label
        return self.ours.get(ours.node) == theirs.node and ours.output == theirs.output

    def both_alone(self, ours: Source, theirs: Source) -> bool:
        """Return whether both values come from unmatched nodes."""
        return not (ours.node is None or theirs.node is None or ours.node in self.ours or theirs.node in self.theirs)

    def same_inputs(self, ours: Vertex, theirs: Vertex) -> bool:
        """Return whether two nodes of the same signature read the same values."""
        return all(self.same(*both) for both in zip(ours.sources, theirs.sources, strict=True))

    def _pair(self, ours: Iterable[int], theirs: Iterable[int]) -> None:
        for one, other in zip(ours, theirs, strict=True):
            self.ours[one], self.theirs[other] = other, one

    def _rest(self) -> tuple[list[int], list[int]]:
        """Return the numbers of unmatched nodes."""
        return (
            [number for number in range(len(self.first.vertices)) if number not in self.ours],
            [number for number in range(len(self.second.vertices)) if number not in self.theirs],
        )

    def _match_digests(self) -> None:
        alike: defaultdict[str, deque[int]] = defaultdict(deque)
        for number, vertex in enumerate(self.second.vertices):
            alike[vertex.digest].append(number)
        for number, vertex in enumerate(self.first.vertices):
            if alike[vertex.digest]:
                self._pair([number], [alike[vertex.digest].popleft()])

    def _match_signatures(self) -> None:
        left, right = self._rest()
        # Match from the end first, which leaves little for the slower comparison.
        while left and right and self._look_alike(left[-1], right[-1]):
            self._pair([left.pop()], [right.pop()])
        ours = [self.first.vertices[number].signature for number in left]
        theirs = [self.second.vertices[number].signature for number in right]
        for i, j, size in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
            self._pair(left[i : i + size], right[j : j + size])

    def _match_moved(self) -> None:
        left, right = self._rest()
        alike: defaultdict[str, list[int]] = defaultdict(list)
        for number in right:
            alike[self.second.vertices[number].signature].append(number)
        for number in left:
            vertex = self.first.vertices[number]
            for other in alike[vertex.signature]:
                if self.same_inputs(vertex, self.second.vertices[other]):
                    alike[vertex.signature].remove(other)
                    self._pair([number], [other])
                    break

    def _look_alike(self, ours: int, theirs: int) -> bool:
        return self.first.vertices[ours].signature == self.second.vertices[theirs].signature


class Names:
    """Text of nodes for comparison: values of both graphs by the first graph's names, and constants by value."""

    def __init__(self, match: Match):
        self._match = match
        self._renamed: dict[str, str] = {}
        for number, vertex in enumerate(match.second.vertices):
            matched: Sequence[str] = ()
            if number in match.theirs:
                matched = match.first.vertices[match.theirs[number]].node.output
            for output, name in enumerate(vertex.node.output):
                own = name + PRIME if name in match.first.sources else name
                self._renamed[name] = matched[output] if output < len(matched) and matched[output] else own

    def in_first(self, vertex: Vertex) -> str:
        """Return the text of a node of the first graph."""
        sources = self._match.first.sources
        return _words(vertex, lambda value: (value in sources and sources[value].tensor) or value)

    def in_second(self, vertex: Vertex) -> str:
        """Return the text of a node of the second graph."""
        sources = self._match.second.sources
        return _words(
            vertex, lambda value: (value in sources and sources[value].tensor) or self._renamed.get(value, value)
        )


def _words(vertex: Vertex, called: Callable[[str], str]) -> str:
    bodies = "".join(f" [{name} {digest[:SHOWN_DIGITS]}]" for name, digest in vertex.bodies.items())
    return f"{vertex.node.name or '-'} {node_text(vertex.node, called)}{bodies}"
