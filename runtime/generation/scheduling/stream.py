"""The stream of one row, which hands out what the scheduler has recorded of it."""

from abc import abstractmethod
from collections.abc import Iterator

from edgeformer.runtime.generation.row import Generation, Row, TokenEvent
from edgeformer.runtime.generation.scheduling.request import TokenRecord
from edgeformer.runtime.generation.scheduling.scheduler import Scheduler
from edgeformer.runtime.text.streaming import TextStream


class RowStream(Iterator[str]):
    """An iterator over pieces of the text of a row as they are generated.

    Iterating and `events` share one place in the stream: a token is handed out once. Whoever reads a token decodes its
    text, so that the loop has that much less to do between two steps.

    row: one without tokens. record: what is known of it.
    """

    def __init__(self, row: Row):
        self._row = row
        self._texts = row.stream
        if isinstance(row.stream, TextStream):
            row.stream = row.stream.at_end()
        # Stop strings are looked for in each piece of text, so the row decodes it itself.
        self.record = TokenRecord(keeps_pieces=row.stream is self._texts)
        self._read = 0  # of the row's tokens

    @property
    def ended(self) -> bool:
        """Whether no more tokens come."""
        return self.record.ended

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.record.cancelled

    @property
    def error(self) -> BaseException | None:
        """The error that ended the request, which `finish` and iterating raise; None without one."""
        return self.record.error

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
        if self.record.pieces is not None:
            text = self.record.pieces[place]
        else:
            assert self._texts is not None
            text = "" if token in row.eos else self._texts.push(token)
            # The row appends the last token before it says why it is the last.
            if row.finish_reason and place + 1 == len(row.tokens):
                text += self._texts.flush()
        return TokenEvent(token, text, row.logprobs[place] if row.logprobs else None)

    def _raise_error(self) -> None:
        if self.record.error is not None:
            raise self.record.error


class GenerationStream(RowStream):
    """An iterator over pieces of text as they are generated; `finish` runs to the end and returns the `Generation`.

    Whoever reads it computes: it takes the scheduler's turns until there is something to read.
    """

    def __init__(self, row: Row, scheduler: Scheduler):
        super().__init__(row)
        self._scheduler = scheduler

    def finish(self) -> Generation:
        """Generate the rest and return the whole result. Raises the error of the request."""
        while not self.record.ended:
            self._scheduler.turn()
        self._raise_error()
        return self._row.result()

    def cancel(self) -> None:
        """Generate no more; `finish` then returns what there is, with the finish_reason `cancelled`.

        The whole text may then end with what no piece has: U+FFFD for a part of a character, or the beginning of a stop
        string.
        """
        self.record.cancel()
        self._read = self.record.pushed
        self._scheduler.drop_cancelled()

    def _next_event(self) -> TokenEvent | None:
        record = self.record
        while self._read == record.pushed and not record.ended:
            self._scheduler.turn()
        if self._read < record.pushed:
            return self._next_token()
        self._raise_error()
        return None
