"""One request in an engine: the row of the generation loop, its stream, and the memory that it can need."""

import warnings
from dataclasses import dataclass
from typing import Any

from edgeformer.runtime.engine.row_drafts import RowDrafts
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.generation.generate import Row
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.memory import Candidates


@dataclass(eq=False)
class EngineRequest:
    """A request and where it stands.

    needed: bytes of its caches at its end, if it generates all that it may. surplus: bytes that its row takes beyond
    these. source: the encoder's inputs, of an encoder-decoder. place: its row of the cache. prefilled: tokens of the
    prompt that are in the cache. overtaken: later requests that went ahead of it. fork, first_logits: of the `Prefix`
    that its row began with. adapter: the name of its LoRA adapter; what a row with one computes is of no use to
    requests with another or none. drafts: of its next tokens; None where it asks for none.
    """

    row: Row
    stream: EngineStream
    needed: int
    source: Any = None
    place: int = -1
    prefilled: int = 0
    overtaken: int = 0
    fork: int = 0
    first_logits: Logits | None = None
    adapter: str | None = None
    drafts: RowDrafts | None = None
    surplus: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that the request may take."""
        return self.needed + self.surplus

    @property
    def ended(self) -> bool:
        """Whether the request generates no more."""
        return self.stream.ended

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
        """End the stream."""
        try:
            self.stream.end(error)
        except Exception as problem:  # of a listener; the stream has ended by then
            warnings.warn(f"a listener of a stream that has ended raised {problem!r}", stacklevel=2)
