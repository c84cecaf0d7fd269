"""One request in a scheduler: the row that it generates, its stream, and the memory that it can need."""

import warnings
from dataclasses import dataclass
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


class Unread:
    """A sink for a row that nobody reads while it runs."""

    cancelled = False

    def cancel(self) -> None:
        """Do nothing: the row runs to its end."""

    def push(self, piece: str) -> None:
        """Do nothing: the row has its tokens itself."""

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing: the request has its end itself."""


UNREAD = Unread()


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
    stream: TokenSink = UNREAD
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
