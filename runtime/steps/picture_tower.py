"""Runs of a tower of pictures: a tile or a few at a time, so that whoever runs it can do other things in between.

picture   runs   [tile 0] [tile 1] [tile 2] …      `read_next` runs one of them
          states float32 [N, E]               when all have run, or another prompt has had the picture
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]
Run = Mapping[str, NDArray[Any]]
"""The inputs of one run of a tower, by their names."""


class FeatureCache:
    """States that a tower computed of pictures, by the digests of their pixels; what was used last stays longest.

    Attributes:
        max_bytes: that are kept; 0 keeps nothing more.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, digest: bytes) -> Features | None:
        """Return what was kept of a picture; None if nothing was."""
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def put(self, digest: bytes, features: Features) -> None:
        """Keep what was computed of a picture, and forget what was not used for longest."""
        with self._lock:
            if digest in self._kept or features.nbytes > self.max_bytes:
                return
            self._kept[digest] = features
            self._bytes += features.nbytes
            while self._bytes > self.max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class Tower:
    """A tower of pictures.

    Attributes:
        run: returns the states of one run, float32 [n, E].
        features: what was computed of other pictures, and of this one before.
    """

    run: Callable[[Run], Features]
    features: FeatureCache


class PromptPicture:
    """A picture of a prompt.

    Attributes:
        digest: of its pixels and of what is done to them.
        count: of its states.
        states: float32 [count, E].
        waiting_bytes: of what a tower has not read yet.
    """

    def __init__(self, digest: bytes, states: Features):
        self.digest = digest
        self.count = len(states)
        self._states: Features | None = states

    @property
    def states(self) -> Features:
        """The states; a tower computes those that are not there yet."""
        while self.read_next():
            pass
        assert self._states is not None
        return self._states

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what a tower has not read yet."""
        return 0

    def read_next(self) -> bool:
        """Let the tower read the next tiles; return False where all states are there, and nothing was run."""
        return False


class WaitingPicture(PromptPicture):
    """A picture of a prompt whose states the tower computes when the prompt is run up to it.

    runs: makes what the tower reads of it; they are not made where the states are known.
    packed: puts the states of all runs together; None where they stand in order.
    """

    def __init__(
        self,
        digest: bytes,
        count: int,
        tower: Tower,
        runs: Callable[[], Sequence[Run]],
        packed: Callable[[Features], Features] | None = None,
    ):
        self.digest = digest
        self.count = count
        self._packed = packed
        self._tower = tower
        self._states = tower.features.get(digest)
        self._runs = [] if self._states is not None else list(runs())
        self._made: list[Features] = []

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what the tower has not read yet."""
        return sum(each.nbytes for run in self._runs for each in run.values())

    def read_next(self) -> bool:
        """Run the tower over the next tiles; return False where another prompt had the picture, or all have run."""
        if self._states is None and not self._made:
            self._states = self._tower.features.get(self.digest)
        if self._states is not None:
            self._runs = []
            return False
        self._made.append(self._tower.run(self._runs[0]))
        self._runs = self._runs[1:]
        if not self._runs:
            states = self._made[0] if len(self._made) == 1 else np.concatenate(self._made)
            states = states if self._packed is None else self._packed(states)
            if len(states) != self.count:
                raise ValueError(f"the tower has {len(states)} states of a picture of {self.count} placeholders")
            self._states, self._made = states, []
            self._tower.features.put(self.digest, states)
        return True
