"""One request in a scheduler: the row that it generates, its stream, and the memory that it can need."""

import warnings
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.memory import Candidates


class TokenSink(Protocol):
    """Whoever is told of the tokens of a row, and may ask for no more."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

    def cancel(self) -> None:
        """Ask for no more tokens."""

    def push(self, piece: str) -> None:
        """Take the row's next token, and the text that the row says it completes."""

    def end(self, error: BaseException | None = None) -> None:
        """Take the end of the row, by an error or without."""


class TokenRecord:
    """The tokens of a row as far as a reader on the same thread needs to know of them.

    - pieces: the text that each token completes; None where the reader decodes it.
    - pushed: tokens so far.
    - cancelled, ended, error: whether no more tokens are wanted; whether none come, and the error that is the reason.

    It does not know its reader, so that a reader that is dropped takes the cache of its row along.
    """

    __slots__ = ("cancelled", "ended", "error", "pieces", "pushed")

    def __init__(self, keeps_pieces: bool = False):
        self.pieces: list[str] | None = [] if keeps_pieces else None
        self.pushed = 0
        self.cancelled = self.ended = False
        self.error: BaseException | None = None

    def cancel(self) -> None:
        """Ask for no more tokens."""
        self.cancelled = True

    def push(self, piece: str) -> None:
        """Take the row's next token."""
        self.pushed += 1
        if self.pieces is not None:
            self.pieces.append(piece)

    def end(self, error: BaseException | None = None) -> None:
        """Take the end of the row."""
        self.ended, self.error = True, error


@dataclass(eq=False, slots=True)
class ScheduledRequest:
    """A request and where it stands.

    - needed: bytes of its caches at its end, if it generates all that it may.
    - source: the encoder's inputs, of an encoder-decoder.
    - place: its row of the cache.
    - prefilled: tokens of the prompt that are in the cache.
    - overtaken: later requests that went ahead of it.
    - fork: the number of tokens of the prompt at which what the row holds is to be kept (`Prefix.fork`).
    - first_logits: [V] after the prompt, where its row began with all of it.
    - adapter: the name of its LoRA adapter; what a row with one computes is of no use to requests with another or none.
    - drafts: of its next tokens; None where it asks for none.
    - surplus: bytes that its row takes beyond the needed ones.
    - ended, error: whether the request generates no more, and the error that ended it.
    """

    row: Row
    stream: TokenSink = field(default_factory=TokenRecord)
    needed: int = 0
    source: Any = None
    place: int = -1
    prefilled: int = 0
    overtaken: int = 0
    fork: int = 0
    first_logits: Logits | None = None
    adapter: str | None = None
    drafts: RowDrafts | None = None
    surplus: int = 0
    ended: bool = False
    error: BaseException | None = None

    @property
    def bytes(self) -> int:
        """Bytes that the request may take."""
        return self.needed + self.surplus

    def advance(self, logits: Logits | Candidates) -> Exception | None:
        """Choose the next token from logits [V], or among candidates.

        Returns what went wrong, in a logits processor or a listener, or None. The caller then ends this request and no
        other.
        """
        try:
            self.stream.push(self.row.advance(logits))
        except Exception as error:  # the caller's own code, which may raise anything
            return error
        return None

    def end(self, error: BaseException | None = None) -> None:
        """End the request and its stream."""
        self.ended, self.error = True, error
        try:
            self.stream.end(error)
        except Exception as problem:  # of a listener; the stream has ended by then
            warnings.warn(f"a listener of a stream that has ended raised {problem!r}", stacklevel=2)
