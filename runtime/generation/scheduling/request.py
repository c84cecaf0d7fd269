"""One request in a scheduler: the row that it generates, its stream, and the memory that it can need."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.steps.decode_graph import Logits


class Reader(Protocol):
    """Whoever reads a row: it may ask for no more tokens, and is told of the end."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

    def cancel(self) -> None:
        """Ask for no more tokens."""

    def end(self, error: BaseException | None = None) -> None:
        """Take the end of the row, by an error or without."""


class ReaderState:
    """The state of a reader on the thread that computes.

    It knows neither the reader nor the row, so that a reader that is dropped takes the cache of its row along.
    """

    __slots__ = ("cancelled", "ended", "error")

    def __init__(self) -> None:
        self.cancelled = self.ended = False
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """Ask for no more tokens."""
        self.cancelled = True

    def end(self, error: BaseException | None = None) -> None:
        """Take the end of the row, by an error or without."""
        self.ended, self.error = True, error


@dataclass(eq=False, slots=True)
class ScheduledRequest:
    """A request and where it stands.

    - stream: of its tokens, or the state of one.
    - push: is called with the text that each token completes; None where nobody waits for it.
    - needed: bytes of its caches at its end, if it generates all that it may.
    - source: the encoder's inputs, of an encoder-decoder.
    - place: its row of the cache.
    - prefilled: tokens of the prompt that are in the cache.
    - times_skipped: later requests that went ahead of it.
    - branches: numbers of tokens of the prompt at which what the row holds is to be kept (`Prefix.branches`).
    - first_logits: [V] after the prompt, where its row began with all of it.
    - adapter: the name of its LoRA adapter; what a row with one computes is of no use to requests with another or none.
    - drafts: of its next tokens; None where it asks for none.
    - states: where those of its tokens are kept for the model's own layer, which drafts; None where it does not.
    - extra_bytes: bytes that its row takes beyond the needed ones.
    - ended, error: whether the request generates no more, and the error that ended it.
    """

    row: Row
    stream: Reader = field(default_factory=ReaderState)
    push: Callable[[str], None] | None = None
    needed: int = 0
    source: Any = None
    place: int = -1
    prefilled: int = 0
    times_skipped: int = 0
    branches: tuple[int, ...] = ()
    first_logits: Logits | None = None
    adapter: str | None = None
    drafts: RowDrafts | None = None
    states: NDArray[np.float32] | None = None
    extra_bytes: int = 0
    ended: bool = False
    error: BaseException | None = None

    @property
    def most_tokens(self) -> int:
        """Tokens that it has at its end, if it generates all that it may."""
        return len(self.row.prompt) + self.row.max_new_tokens

    @property
    def bytes(self) -> int:
        """Bytes that the request may take."""
        return self.needed + self.extra_bytes

    def end(self, error: BaseException | None = None) -> None:
        """End the request and its stream."""
        self.ended, self.error = True, error
        try:
            self.stream.end(error)
        except Exception as problem:  # of a listener; the stream has ended by then
            warnings.warn(f"a listener of a stream that has ended raised {problem!r}", stacklevel=2)
