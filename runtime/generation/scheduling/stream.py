"""The stream of one row, which hands out what the scheduler has recorded of it."""

from abc import abstractmethod
from collections.abc import Iterator

from edgeformer.runtime.generation.row import Generation, Row, TokenEvent
from edgeformer.runtime.generation.scheduling.request import ReaderState, ScheduledRequest
from edgeformer.runtime.generation.scheduling.scheduler import Scheduler
from edgeformer.runtime.text.streaming import TextStream


class RowStream(Iterator[str]):
    """An iterator over pieces of the text of a row as they are generated.

    Iterating and `events` share one place in the stream: a token is handed out once. Whoever reads a token decodes its
    text, so that the loop has that much less to do between two steps.

    row: one without tokens.
    """

    def __init__(self, row: Row):
        self._row = row
        self._texts = row.stream
        if isinstance(row.stream, TextStream):
            row.stream = row.stream.at_end()
        # Stop strings are looked for in each piece of text, so the row decodes it itself.
        self._pieces: list[str] | None = [] if row.stream is self._texts else None
        self._state = ReaderState()
        self._read = 0  # of the row's tokens

    @property
    def ended(self) -> bool:
        """Whether no more tokens come."""
        return self._state.ended

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._state.cancelled

    @property
    def error(self) -> BaseException | None:
        """The error that ended the request, which `finish` and iterating raise; None without one."""
        return self._state.error

    def __next__(self) -> str:
        while (event := self._next_event()) is not None:
            if event.text:
                return event.text
        raise StopIteration

    def events(self) -> Iterator[TokenEvent]:
        """Yield the tokens that are still to come, each with its text and its log-probability.

        Raises the error of the request.
        """
        while (event := self._next_event()) is not None:
            yield event

    @abstractmethod
    def _next_event(self) -> TokenEvent | None:
        """Wait for the next token; return None at the end. Raises the error of the request."""

    def _next_token(self) -> TokenEvent:
        """Return the first token that nobody has read."""
        place, row = self._read, self._row
        self._read += 1
        token = row.tokens[place]
        if self._pieces is not None:
            text = self._pieces[place]
        else:
            assert self._texts is not None
            text = "" if token in row.eos else self._texts.push(token)
            # The row appends the last token before it says why it is the last.
            if row.finish_reason and place + 1 == len(row.tokens):
                text += self._texts.flush()
        return TokenEvent(token, text, row.logprobs[place] if row.logprobs else None)

    def _raise_error(self) -> None:
        if self._state.error is not None:
            raise self._state.error


class GenerationStream(RowStream):
    """An iterator over pieces of text as they are generated; `finish` runs to the end and returns the `Generation`.

    Whoever reads it computes: it takes the scheduler's turns until there is something to read.
    """

    def __init__(self, request: ScheduledRequest, scheduler: Scheduler):
        super().__init__(request.row)
        self._scheduler = scheduler
        request.stream, request.push = self._state, None if self._pieces is None else self._pieces.append

    def finish(self) -> Generation:
        """Generate the rest and return the whole result. Raises the error of the request."""
        while not self._state.ended:
            self._scheduler.turn()
        self._raise_error()
        return self._row.result()

    def cancel(self) -> None:
        """Generate no more; `finish` then returns what there is, with the finish_reason `cancelled`.

        The whole text may then end with what no piece has: U+FFFD for a part of a character, or the beginning of a stop
        string.
        """
        self._state.cancel()
        self._read = len(self._row.tokens)
        self._scheduler.drop_cancelled()

    def _next_event(self) -> TokenEvent | None:
        state, told = self._state, self._row.tokens if self._pieces is None else self._pieces
        while self._read == len(told) and not state.ended:
            self._scheduler.turn()
        if self._read < len(told):
            return self._next_token()
        self._raise_error()
        return None
